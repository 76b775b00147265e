# SPDX-License-Identifier: BSD-3-Clause

"""The tensors that a replay's ops get in place of tensors from outside."""

import torch

from . import _C


def stand_ins(tensors):
    """Returns for each tensor its stand-in in the replay's graph; other values are returned unchanged."""
    return tuple(_C._stand_in(t) if isinstance(t, torch.Tensor) else t for t in tensors or ())
