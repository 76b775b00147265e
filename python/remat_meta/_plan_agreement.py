# SPDX-License-Identifier: BSD-3-Clause

"""One plan for all ranks that share sharded weights.

Note [Agreed plans]: a replay has the weights gathered that it needs, so ranks with other plans gather in another
order, and wait for each other for ever. What ranks measure differs, so plans do. So after each step that was measured
the lowest of the ranks that gather together writes what it has decided to the store of the default group: nothing yet,
a plan, that there is none; the others wait for that and do the same, after the same step. Ranks that gather together
wait for each other in each step anyway, so that no pipeline stops by it. Others are not asked.
"""

import collections
import logging
import sys
import time
import warnings
import weakref

import torch

from . import _default_group

_POLL_S = 0.002
_PATIENCE_S = 10.0  # then the rank says for whom it waits; it does so as long as the store would

_logger = logging.getLogger("remat_meta")


def _ranks_that_gather_with(module):
    """For fully_shard: with this rank, for a module and what is in it, or if it is None for any that there is."""
    if "torch.distributed.fsdp" not in sys.modules:
        return set()
    from torch.distributed._composable_state import _module_state_mapping

    known, ranks = torch.distributed.distributed_c10d._world.pg_group_ranks, set()  # without groups that have ended
    for one in list(_module_state_mapping) if module is None else module.modules():
        state = _module_state_mapping.get(one, lambda: None)()
        info = getattr(getattr(state, "_fsdp_param_group", None), "mesh_info", None)
        group = getattr(info, "shard_process_group", None)
        ranks.update(known.get(group, ()))
    return ranks


class _Plans:
    """What ranks of a default group tell each other."""

    def __init__(self, store, rank):
        self.rank = rank
        self._store = torch.distributed.PrefixStore("plans", store)
        self._numbers = weakref.WeakKeyDictionary()  # by PlanAgreement: which of its name
        self._counts = collections.Counter()

    def number_of(self, agreement, where):
        if agreement not in self._numbers:
            self._numbers[agreement] = self._counts[where]
            self._counts[where] += 1
        return self._numbers[agreement]

    def tell(self, key, text):
        self._store.set(key, text)

    def wait(self, key, words):
        begin_s, is_late = time.monotonic(), False
        end_s = self._store.timeout.total_seconds()
        while not self._store.check([key]):
            waited_s = time.monotonic() - begin_s
            if waited_s > end_s:
                raise TimeoutError(words(f"got none within {end_s:.0f} s"))
            if waited_s > _PATIENCE_S and not is_late:
                is_late = True
                warnings.warn(words(f"got none within {_PATIENCE_S:.0f} s, and waits on"), stacklevel=2)
            time.sleep(_POLL_S)
        return self._store.get(key).decode()


_current = None


class PlanAgreement:
    """Of one auto_checkpoint."""

    def __init__(self, name, budget, module):
        self._name = name
        self._where = f"{name}/{budget}"
        self._module = None if module is None else weakref.ref(module)
        self._steps = 0

    def begin_step(self):
        self._steps += 1

    def agree(self, own):
        """What to do after the step that was measured: of the lowest rank. `own` if nobody else is concerned."""
        if _current is None:
            return own
        ranks = _ranks_that_gather_with(self._module and self._module())
        if len(ranks) < 2:
            return own
        try:
            return self._follow(_current, min(ranks), own)
        except TimeoutError:
            raise
        except RuntimeError as error:  # the rank that has the store may have ended
            _logger.info("[auto_checkpoint] plans of ranks are not compared any more: %s", error)
            return own

    def _follow(self, plans, first, own):
        where = f"{first}/{self._where}"
        key = f"{where}/{plans.number_of(self, where)}/{self._steps}"
        if plans.rank == first:
            plans.tell(key, own)
            return own
        return plans.wait(key, lambda got: self._words(first, got))

    def _words(self, first, got):
        return (
            f"[auto_checkpoint] '{self._name}': expected of rank {first} what it has decided before step {self._steps}, {got}. "
            "Ranks of sharded weights run by one plan: give all of them steps of the same kinds and sizes, each within "
            "auto_checkpoint, or give auto_checkpoint modules inside of those that fully_shard has taken."
        )


def _begin(members):
    global _current
    _current = members and _Plans(*members[:2])


_default_group.follow(_begin)
