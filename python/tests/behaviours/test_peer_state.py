# SPDX-License-Identifier: BSD-3-Clause

"""Behaviours 115 to 118 of torch_remat 0.2.2: state hooks."""

import pytest
from kept import save
from programs import checkpointed, leaf

import remat_meta as remat


class Counter:
    """A state that each call counts up, and a log of the hook's calls."""

    def __init__(self, name, log):
        self.name, self.log, self.value = name, log, 0

    def snapshot(self):
        self.log.append((self.name, "snapshot", self.value))
        return self.value

    def restore(self, state):
        self.log.append((self.name, "restore", state))
        self.value = state


def counted(hooks, seen):
    def fn(x):
        for hook in hooks:
            hook.value += 1
        seen.append(hooks[0].value)

        def call(x):
            for hook in hooks:
                hook.value += 10
            return x.exp()

        y = save(call, "a")(x.sin())
        seen.append(hooks[0].value)
        return y.cos().exp()

    return fn


def test_115_snapshots_at_entry_and_after_save_calls_restored_there():
    log, seen = [], []
    hook = Counter("c", log)
    assert isinstance(hook, remat.RecomputeStateHook)
    y = remat.checkpoint(recompute_state_hooks=(hook,))(counted([hook], seen))(leaf(3))
    assert log == [("c", "snapshot", 0), ("c", "snapshot", 11)]
    log.clear()
    hook.value = 99
    y.sum().backward()
    assert log == [("c", "snapshot", 99), ("c", "restore", 0), ("c", "restore", 11), ("c", "restore", 99)]
    assert seen == [1, 11, 1, 11] and hook.value == 99


def test_116_state_without_a_hook_that_changes_what_is_computed_raises():
    state = [1.0]

    def fn(x):
        state[0] += 1
        return (x * state[0]).sin()

    y = checkpointed(fn)(leaf(3))
    with pytest.raises(remat.ReplayMismatch, match="aten::mul"):
        y.sum().backward()


def test_117_several_hooks_in_order():
    log, seen = [], []
    hooks = [Counter("a", log), Counter("b", log)]
    remat.checkpoint(recompute_state_hooks=hooks)(counted(hooks, seen))(leaf(3)).sum().backward()
    names = [name for name, *_ in log]
    # After the replay the states from before it are restored, the last hook's first.
    assert names == ["a", "b"] * (len(log) // 2 - 1) + ["b", "a"]
    assert [value for name, what, value in log if what == "restore"] == [0, 0, 11, 11, 11, 11]
    with pytest.raises(TypeError, match=r"recompute_state_hooks\[0\]: expected an object with snapshot"):
        remat.checkpoint(recompute_state_hooks=[3])


def test_118_a_second_replay_is_as_the_first():
    log, seen = [], []
    hook = Counter("c", log)
    y = remat.checkpoint(recompute_state_hooks=[hook])(counted([hook], seen))(leaf(3))
    y.sum().backward(retain_graph=True)
    hook.value = 1000
    y.sum().backward()
    assert seen == [1, 11] * 3 and hook.value == 1000
