# SPDX-License-Identifier: BSD-3-Clause

VERSION: str
TORCH_VERSION: str
