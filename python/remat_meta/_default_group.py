# SPDX-License-Identifier: BSD-3-Clause

"""Follows torch.distributed's default process group as it comes and goes."""

import functools
import os

import torch

_ONE_PROCESS = ("fake", "threaded")  # backends whose ranks are not processes

_followers = []
_ended = 0  # groups that have ended; counted because a new group may get an old group's store, with its entries


def _members_of(group):
    """Returns store, rank and size of a group of several processes to which this process belongs; else None. The store has a
    prefix that no earlier group had."""
    c10d = torch.distributed.distributed_c10d
    if group is None or group is c10d.GroupMember.NON_GROUP_MEMBER or group.size() == 1:
        return None
    _, store = c10d._world.pg_map.get(group, (None, None))  # missing for a group that was shrunk; MPI has no store
    if store is None or c10d.get_backend(group) in _ONE_PROCESS:
        return None
    return torch.distributed.PrefixStore(f"remat/{_ended}", store), group.rank(), group.size()


def _tell(members):
    for follower in _followers:
        follower(members)


@functools.cache
def watch():
    """From now on counts the groups that end. All ranks must call this in the lifetime of the same group, to count alike."""
    if not torch.distributed.is_available():
        return
    c10d = torch.distributed.distributed_c10d
    update = c10d._update_default_pg

    @functools.wraps(update)
    def _update_default_pg(group):
        global _ended
        _ended += group is None
        update(group)
        _tell(_members_of(group))

    c10d._update_default_pg = _update_default_pg
    # A forked child must stop, because it shares its parent's connection to the store and is no rank.
    os.register_at_fork(after_in_child=lambda: _tell(None))


def follow(follower):
    """Calls follower((store, rank, world)) for the present group and each later one, and follower(None) when one ends."""
    if not torch.distributed.is_available():
        return
    watch()
    _followers.append(follower)
    follower(_members_of(torch.distributed.distributed_c10d._world.default_pg))
