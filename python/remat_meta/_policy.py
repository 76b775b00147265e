# SPDX-License-Identifier: BSD-3-Clause

"""What is done with a named call's values."""

import enum

from . import _C


class CheckpointPolicy(enum.Enum):
    """SAVE: keep and do not run again. RECOMPUTE: run again. OFFLOAD: as SAVE, in the region's
    offload_store or saved_tensors_hooks."""

    SAVE = "save"
    RECOMPUTE = "recompute"
    OFFLOAD = "offload"


_C._set_policies(CheckpointPolicy.SAVE, CheckpointPolicy.RECOMPUTE, CheckpointPolicy.OFFLOAD)
