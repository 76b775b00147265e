// SPDX-License-Identifier: BSD-3-Clause

// Below nobody.
#pragma once
