# SPDX-License-Identifier: BSD-3-Clause

"""Gives all ranks that share sharded weights the same plan.

Note [Agreed plans]: a replay gathers the weights that it needs, so ranks with different plans would gather in different
orders and wait for each other forever. Ranks measure different numbers, so they would make different plans. Therefore, after
each measured step, the lowest of the ranks that gather together writes its decision to the store of the default group: to
measure on, to follow a plan, or to have none. The other ranks wait for the decision and follow it after the same step. Ranks
that gather together wait for each other in each step anyway, so no pipeline stalls. A rank that gathers alone takes no part.
"""

import collections
import functools
import logging
import sys
import time
import warnings
import weakref

import torch

from . import _default_group

_POLL_S = 0.002
_PATIENCE_S = 10.0  # a rank that waits longer warns, and raises after the store's timeout

_logger = logging.getLogger("remat_meta")


def _ranks_that_gather_with(module):
    """Returns the ranks that gather the weights that fully_shard has sharded in `module`, or in any module if it is None."""
    if "torch.distributed.fsdp" not in sys.modules:
        return set()
    from torch.distributed._composable_state import _module_state_mapping

    known, ranks = torch.distributed.distributed_c10d._world.pg_group_ranks, set()  # pg_group_ranks has no groups that have ended
    for one in list(_module_state_mapping) if module is None else module.modules():
        state = _module_state_mapping.get(one, lambda: None)()
        info = getattr(getattr(state, "_fsdp_param_group", None), "mesh_info", None)
        group = getattr(info, "shard_process_group", None)
        ranks.update(known.get(group, ()))
    return ranks


class _Plans:
    """The messages between ranks of a default group."""

    def __init__(self, store, rank):
        self.rank = rank
        self._store = torch.distributed.PrefixStore("plans", store)
        self._numbers = weakref.WeakKeyDictionary()  # the index of each PlanAgreement among those with its name
        self._counts = collections.Counter()

    def number_of(self, agreement, where):
        if agreement not in self._numbers:
            self._numbers[agreement] = self._counts[where]
            self._counts[where] += 1
        return self._numbers[agreement]

    def write(self, key, text):
        self._store.set(key, text)

    def wait(self, key, message):
        begin_s, is_late = time.monotonic(), False
        end_s = self._store.timeout.total_seconds()
        while not self._store.check([key]):
            waited_s = time.monotonic() - begin_s
            if waited_s > end_s:
                raise TimeoutError(message(f"got none within {end_s:.0f} s"))
            if waited_s > _PATIENCE_S and not is_late:
                is_late = True
                warnings.warn(message(f"got none within {_PATIENCE_S:.0f} s, and waits on"), stacklevel=2)
            time.sleep(_POLL_S)
        return self._store.get(key).decode()


_current = None


class PlanAgreement:
    """The agreement on the plans of one auto_checkpoint."""

    def __init__(self, name, budget, module):
        self._name = name
        self._where = f"{name}/{budget}"
        self._module = None if module is None else weakref.ref(module)
        self._steps = 0

    def begin_step(self):
        self._steps += 1

    def agree(self, own):
        """Returns the lowest rank's decision after a measured step, or `own`, this rank's decision, if it gathers alone."""
        if _current is None:
            return own
        ranks = _ranks_that_gather_with(self._module and self._module())
        if len(ranks) < 2:
            return own
        try:
            return self._follow(_current, min(ranks), own)
        except TimeoutError:
            raise
        except RuntimeError as error:  # the rank that hosts the store may have ended
            _logger.info("[auto_checkpoint] plans of ranks are not compared any more: %s", error)
            return own

    def _follow(self, plans, first, own):
        where = f"{first}/{self._where}"
        key = f"{where}/{plans.number_of(self, where)}/{self._steps}"
        if plans.rank == first:
            plans.write(key, own)
            return own
        return plans.wait(key, lambda got: self._message(first, got))

    def _message(self, first, got):
        return (
            f"[auto_checkpoint] '{self._name}': expected of rank {first} what it has decided before step {self._steps}, {got}. "
            "Ranks of sharded weights run by one plan: give all of them steps of the same kinds and sizes, each within "
            "auto_checkpoint, or give auto_checkpoint modules inside of those that fully_shard has taken."
        )


def _begin(members):
    global _current
    _current = members and _Plans(*members[:2])


@functools.cache
def install():
    _default_group.follow(_begin)
