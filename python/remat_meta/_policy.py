# SPDX-License-Identifier: BSD-3-Clause

"""The policies of ops and named calls."""

import enum

import torch
import torch.utils.checkpoint as stock

from . import _C


class CheckpointPolicy(enum.Enum):
    """SAVE: keep the results and do not run again. RECOMPUTE: run again. OFFLOAD: as SAVE, but keep in the region's
    offload_store or saved_tensors_hooks."""

    SAVE = "save"
    RECOMPUTE = "recompute"
    OFFLOAD = "offload"


class PolicyContext:
    """The first argument of a policy function, before the op and its arguments.

    is_recompute: True in a replay, where the answer must be that of the forward.
    tensor_name: the name that the op's call would have, such as "block/aten::mm#3".
    op_output: None, since the op has not run yet.
    """

    __slots__ = ("is_recompute", "op_output", "tensor_name")

    def __init__(self, is_recompute: bool, tensor_name: str) -> None:
        self.is_recompute = is_recompute
        self.tensor_name = tensor_name
        self.op_output = None


# None is no answer, so safe_defaults() decide; that is what None, False and torch's PREFER_RECOMPUTE mean.
_ANSWERS = {
    None: None,
    False: None,
    True: CheckpointPolicy.SAVE,
    CheckpointPolicy.SAVE: CheckpointPolicy.SAVE,
    CheckpointPolicy.RECOMPUTE: CheckpointPolicy.RECOMPUTE,
    CheckpointPolicy.OFFLOAD: CheckpointPolicy.OFFLOAD,
    stock.CheckpointPolicy.MUST_SAVE: CheckpointPolicy.SAVE,
    stock.CheckpointPolicy.PREFER_SAVE: CheckpointPolicy.SAVE,
    stock.CheckpointPolicy.MUST_RECOMPUTE: CheckpointPolicy.RECOMPUTE,
    stock.CheckpointPolicy.PREFER_RECOMPUTE: None,
}


def call_policy_function(function, call, is_recompute, op, args, kwargs):
    if op in stock.SAC_IGNORED_OPS:
        return None
    where = f"[checkpoint] policy, call {call!r}, op {op}"
    # Convert any TypeError: torch's operators (a @ b) would take it to mean that they do not support b.
    try:
        answer = function(PolicyContext(is_recompute, call), op, *args, **kwargs)
    except TypeError as error:
        raise RuntimeError(
            f"{where}: expected a function that takes (context, op, *args, **kwargs) and answers, got "
            f"TypeError: {error}"
        ) from error
    if isinstance(answer, torch.SymBool):  # from a compiler, for sizes
        answer = bool(answer)
    try:
        return _ANSWERS[answer]
    except (KeyError, TypeError):
        raise ValueError(
            f"{where}: expected a CheckpointPolicy (remat's or torch's), a bool or None, got {answer!r}."
        ) from None


_C._set_policies(CheckpointPolicy.SAVE, CheckpointPolicy.RECOMPUTE, CheckpointPolicy.OFFLOAD)
