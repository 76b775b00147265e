# SPDX-License-Identifier: BSD-3-Clause

"""The policies of ops and named calls, and the cuts of tapes."""

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.checkpoint as stock

from . import _C
from ._C import PolicyTable


class CheckpointPolicy(enum.Enum):
    """SAVE: keep the results and do not run again. RECOMPUTE: run again. OFFLOAD: as SAVE, but keep the results in the
    region's offload_store or saved_tensors_hooks."""

    SAVE = "save"
    RECOMPUTE = "recompute"
    OFFLOAD = "offload"


@dataclass(slots=True, eq=False)
class PolicyContext:
    """The first argument of a policy function, before the op and its arguments.

    is_recompute: True in a replay, where the answer must be that of the forward.
    tensor_name: the name that the op's call would have, such as "block/aten::mm#3".
    op_output: None, since the op has not run yet.
    """

    is_recompute: bool
    tensor_name: str
    op_output: None = None


@dataclass(frozen=True)
class Cuts:
    """Cuts for checkpoint(replay="tape", cuts=...): segments of the tape, which backward replays one by one.

    Only one segment at a time is whole in memory. The forward keeps the tensors that one segment
    makes and another reads, each until the last saved tensor made from it is freed. Cuts need not
    match functions or modules.

    positions: segment i ends before record positions[i] of the tape, see region_tapes(). Ascending,
        from 1 on.
    groups: (first segment, last segment + 1) of segments that a replay runs together, to make the
        tensors between them before it replays them one by one; the forward then keeps only the group's
        inputs and outputs. Groups nest, and each level costs another run of its ops.
    policies: one policy per segment, as in checkpoint(policy=...), or None; without any, the region's
        policy. Values that match a SAVE or OFFLOAD rule are kept if backward or a recomputed op reads them.
    keep: if given, only these values and those of `policies` cross cuts or are kept. Each item is
        (record, result) or (record, result, CheckpointPolicy); the order ascends. result is an index in
        the new tensors that the record's op returns, followed by the tensors that the op writes.

    checkpoint() raises ValueError for invalid cuts, and the forward for a position that its function
    does not have.
    """

    positions: Sequence[int]
    groups: Sequence[tuple[int, int]] = ()
    policies: Sequence[PolicyTable | str | Iterable[Any] | Callable[..., Any] | None] = ()
    keep: Sequence[tuple[int, int] | tuple[int, int, CheckpointPolicy]] | None = None


# The policy for each answer of a policy function. None leaves the decision to safe_defaults().
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
            f"{where}: expected a function that takes (context, op, *args, **kwargs) and answers, got TypeError: {error}"
        ) from error
    if isinstance(answer, torch.SymBool):  # from a function that compares sizes under a compiler
        answer = bool(answer)
    try:
        return _ANSWERS[answer]
    except (KeyError, TypeError):
        raise ValueError(f"{where}: expected a CheckpointPolicy (remat's or torch's), a bool or None, got {answer!r}.") from None


_C._set_policies(CheckpointPolicy.SAVE, CheckpointPolicy.RECOMPUTE, CheckpointPolicy.OFFLOAD)
