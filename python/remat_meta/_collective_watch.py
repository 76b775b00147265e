# SPDX-License-Identifier: BSD-3-Clause

"""REMAT_DEBUG_COLLECTIVES=1: collectives of regions are compared between ranks before they are issued.

Each rank writes to the store of the process group what it is about to call, and reads what the others of that
collective's group are about to call. Where they differ all raise, instead of waiting for each other. For debugging:
every collective waits for all ranks of its group to come to it.
"""

import json
import os
import threading
import time

import torch.distributed as dist

from . import _C, _default_group
from ._agreement import name_of

_VARIABLE = "REMAT_DEBUG_COLLECTIVES"
_POLL_S = 0.005
_STAY_S = 1.0  # at the end of a region's run, for ranks that have not ended it

_WAITS = ("wait_tensor",)
_FUNCTIONAL = ("_c10d_functional", "_c10d_functional_autograd")  # whose ranks meet when their results are waited for
_PENDING_COUNT = 50

# Pairs of two ranks, which need not come to them at the same time.
_PAIRS = ("send", "recv_", "recv_any_source_")

# Where all ranks give tensors of the same number of elements.
_SAME_SIZES = {
    *("allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "_allgather_base_", "_reduce_scatter_base_"),
    *("allgather_into_tensor_coalesced_", "reduce_scatter_tensor_coalesced_", "all_reduce", "all_reduce_"),
    *("all_reduce_coalesced", "all_reduce_coalesced_", "broadcast", "all_gather_into_tensor"),
    *("all_gather_into_tensor_coalesced", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"),
}


def _tensors_in(value):
    if hasattr(value, "dtype"):
        return [value]
    return [tensor for part in value for tensor in _tensors_in(part)] if isinstance(value, (list, tuple)) else []


def _group_of(arguments):
    """A boxed group of c10d's ops, or the name at the end of functional ones."""
    for argument in reversed(arguments):
        if hasattr(argument, "_type") and argument._type().qualified_name().endswith("ProcessGroup"):
            return dist.ProcessGroup.unbox(argument)
        if isinstance(argument, str):
            return dist.distributed_c10d._resolve_process_group(argument)
    return None


def _timeout_s(group):
    try:
        return group._get_backend(group._device_types[0]).options._timeout.total_seconds()
    except (AttributeError, IndexError, RuntimeError):
        return dist.distributed_c10d.default_pg_timeout.total_seconds()


def _described(record):
    tensors = ", ".join(f"{dtype} {shape}" for dtype, shape in record["tensors"]) or "no tensor"
    return f"{record['op']} of {tensors} in the {record['run']}"


def _differ(one, other):
    if one["op"] != other["op"] or one["run"] != other["run"]:
        return True
    types = [{dtype for dtype, _ in record["tensors"]} for record in (one, other)]
    if types[0] and types[1] and types[0] != types[1]:
        return True
    is_free = one["op"].partition("::")[2].partition(".")[0] not in _SAME_SIZES
    return not is_free and one["elements"] != other["elements"]


class _Watch:
    """Of one process group. Keys of the store: what a rank issues ("issues/GROUP/NUMBER/RANK"), where it waits
    ("waits/RANK"), which run of a region it has ended, and how ("ended/RANK/RUN")."""

    def __init__(self, store, rank, world):
        self._store = dist.PrefixStore("collectives", store)
        self._rank = rank
        self._world = world
        self._pending = []  # comparisons of functional collectives, which have been issued
        self._issued = {}  # by group's name: how many collectives
        self._runs = {}  # by name: how many
        self._awaited = {}  # by name of a run: the ranks that are waited for at its end
        self._thread = threading.local()

    # Runs of a region's function.

    def begin(self, name, function, is_replay):
        self._raise_difference()
        region = f"'{name}'" if name else f"of {name_of(function)}"
        run = f"{'replay' if is_replay else 'forward'} of region {region}"
        number = self._runs[run] = self._runs.get(run, 0) + 1
        self._open_runs().append((run, number))

    def end(self, error):
        run, number = self._open_runs()[-1]
        try:
            if error is None:
                self._compare_pending()
        finally:
            self._open_runs().pop()
            self._set(f"ended/{self._rank}/{run}", [number, error and error.partition("\n")[0]])
        if error is None:
            self._stay(run, number)
            self._raise_difference()

    def _stay(self, run, number):
        """Ranks that have not ended this run may call a collective that this one has not called, and
        this one should hear of it. Those that have not ended it soon may never do, and are not
        waited for again."""
        until_s = time.monotonic() + _STAY_S
        for other in self._awaited.setdefault(run, set(range(self._world))).copy():
            while self._get(f"ended/{other}/{run}", [0])[0] < number:
                self._raise_difference()
                if time.monotonic() > until_s:
                    self._awaited[run].discard(other)
                    break
                time.sleep(_POLL_S)

    def _open_runs(self):
        if not hasattr(self._thread, "runs"):
            self._thread.runs = []
        return self._thread.runs

    # Collectives.

    def before_collective(self, op, arguments):
        self._raise_difference()
        library, _, kind = op.partition("::")
        kind = kind.partition(".")[0]
        if kind in _WAITS:
            return self._compare_pending()
        group = _group_of(arguments)
        if kind in _PAIRS or group is None:
            return
        self._announce(group, self._record(op, arguments))
        if library not in _FUNCTIONAL or len(self._pending) >= _PENDING_COUNT:
            self._compare_pending()

    def _announce(self, group, record):
        name, ranks = group.group_name, dist.get_process_group_ranks(group)
        number = self._issued[name] = self._issued.get(name, 0) + 1
        self._set(f"issues/{name}/{number}/{self._rank}", record)
        self._pending.append((name, number, ranks, record, _timeout_s(group)))

    def _compare_pending(self):
        pending, self._pending = self._pending, []
        for name, number, ranks, record, timeout_s in pending:
            where = f"collective {number} of group {name} (ranks {', '.join(map(str, ranks))})"
            self._set(f"waits/{self._rank}", [name, number, ranks, f"{_described(record)}, {where}"])
            until_s = time.monotonic() + timeout_s
            for other in ranks:
                self._compare(where, record, other, f"issues/{name}/{number}/{other}", until_s)
            # Nobody reads it any more: the others, who have come to this one, leave fewer than these uncompared.
            self._store.delete_key(f"issues/{name}/{number - 2 * _PENDING_COUNT}/{self._rank}")

    def _record(self, op, arguments):
        tensors = _tensors_in(arguments)
        return {
            "op": op,
            "tensors": [(str(tensor.dtype).removeprefix("torch."), list(tensor.shape)) for tensor in tensors],
            "elements": sum(tensor.numel() for tensor in tensors),
            "run": self._open_runs()[-1][0] if self._open_runs() else "backward",
        }

    def _compare(self, where, record, other, key, until_s):
        while not self._store.check([key]):
            self._raise_difference()
            reason = self._reason_against(other)
            if time.monotonic() > until_s:
                reason = "has not come to it within the group's timeout"
            if reason and not self._store.check([key]):
                self._raise(where, f"{_described(record)} on rank {self._rank}, but rank {other} {reason}")
            time.sleep(_POLL_S)
        theirs = self._get(key, None)
        if _differ(record, theirs):
            both = sorted([(self._rank, record), (other, theirs)], key=lambda one: one[0])
            self._raise(where, " and ".join(f"{_described(one)} on rank {rank}" for rank, one in both))

    def _reason_against(self, other):
        """Why this rank would wait for another one in vain."""
        for run, number in self._open_runs():
            ended, error = self._get(f"ended/{other}/{run}", [0, None])
            if ended >= number:
                return f"has raised in its {run}: {error}" if error else f"has ended its {run} without it"
        name, number, ranks, described = self._get(f"waits/{other}", ["", 0, [], ""])
        if self._rank in ranks and number > self._issued.get(name, 0):
            return f"waits with {described}"
        return None

    # The store.

    def _set(self, key, value):
        self._store.set(key, json.dumps(value))

    def _get(self, key, otherwise):
        return json.loads(self._store.get(key)) if self._store.check([key]) else otherwise

    def _raise(self, where, got):
        text = (
            f"[collectives] {where}: expected the same collectives in the same order on all ranks, got {got}. Let no "
            "collective depend on the rank, or on data that ranks do not share."
        )
        self._store.compare_set("difference", "", text)
        self._raise_difference()

    def _raise_difference(self):
        if self._store.check(["difference"]):
            raise RuntimeError(self._store.get("difference").decode())


_current = None


def before_backward():
    if _current is not None:
        _current._raise_difference()


def _begin(members):
    global _current
    _current = _Watch(*members) if members else None
    _C._set_collective_watch(_current)


def install():
    if os.environ.get(_VARIABLE) == "1":
        _default_group.follow(_begin)
