# SPDX-License-Identifier: BSD-3-Clause

"""The places where the tape of a region is cut."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ._C import PolicyTable
from ._policy import CheckpointPolicy


@dataclass(frozen=True)
class Cuts:
    """Cuts for checkpoint(replay="tape", cuts=...): segments of the tape, which backward replays one by one.

    Only one segment at a time is whole in memory. The forward keeps the tensors that one segment
    makes and another reads, each until the last saved tensor made from it is freed. Cuts need not
    match functions or modules.

    positions: segment i ends before record positions[i] of the tape, see region_tapes(); ascending,
        from 1 on.
    groups: (first segment, last segment + 1) of segments that are first replayed together, for the
        tensors between them; the forward then keeps only the group's inputs and outputs. Groups nest:
        each level costs another run of its ops.
    policies: one per segment, as in checkpoint(policy=...), or None; empty: the region's policy. What
        their SAVE and OFFLOAD rules match is kept if backward or a recomputed op reads it.
    keep: if given, the only values that cross cuts or are kept, besides those of policies: (record, result)
        or (record, result, CheckpointPolicy), ascending. result counts the new tensors that the
        record's op returns, then those that it writes.

    checkpoint() raises ValueError for invalid cuts, and the forward for a position that its function
    does not have.
    """

    positions: Sequence[int]
    groups: Sequence[tuple[int, int]] = ()
    policies: Sequence[PolicyTable | str | Iterable[Any] | Callable[..., Any] | None] = ()
    keep: Sequence[tuple[int, int] | tuple[int, int, CheckpointPolicy]] | None = None
