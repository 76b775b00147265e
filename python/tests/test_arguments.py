# SPDX-License-Identifier: BSD-3-Clause

"""Arguments of a function when it runs again."""

import torch
from programs import checkpointed, leaf
from same import assert_same
from torch import nn


def test_keywords_containers_and_opaque_arguments_reach_fn_in_both_runs():
    class Opaque:
        pass

    opaque, runs = Opaque(), []

    def fn(x, *more, scale, region_name, config):
        runs.append((more, scale, region_name, config["name"], config["opaque"]))
        return (x * scale + config["deep"][0]["w"] * more[0][1]).sin()

    x, w, v = leaf(3), leaf(3), leaf(3)
    config = {"deep": [{"w": w}], "opaque": opaque, "name": "n"}
    checkpointed(fn)(x, [1, v], (), scale=2.0, region_name="mine", config=config).sum().backward()
    assert len(runs) == 2
    assert runs[0][1:] == runs[1][1:] == (2.0, "mine", "n", opaque)
    assert runs[1][0][0][1] is v and runs[1][0][1] == ()
    assert x.grad is not None and w.grad is not None and v.grad is not None


def test_a_replay_gets_containers_as_they_were_at_the_call():
    x, seen = leaf(3), []

    def fn(x, state):
        seen.append(list(state))
        state.append(x.sin())
        return state[-1] * len(state)

    state = []
    y = checkpointed(fn)(x, state)
    state.append("later")
    y.sum().backward()
    assert seen == [[], []]
    assert len(state) == 2  # the replay wrote to its own list


def test_a_container_passed_twice_is_one_container_in_the_replay():
    same = []
    x = leaf(3)
    items = [x]
    items.append(items)  # the list contains itself

    def fn(a, b):
        same.append(a is b and a[1] is a)
        return a[0].sin()

    checkpointed(fn)(items, items).sum().backward()
    assert same == [True, True]


def test_classes_and_attributes_of_tensor_arguments_hold_in_the_replay():
    class Tagged(torch.Tensor):
        pass

    kinds = []

    def fn(tagged, frozen, weight):
        kinds.append((type(tagged), getattr(tagged, "tag", None), type(frozen), weight))
        return (weight * 2 * frozen).sin() + torch.sin(tagged).as_subclass(torch.Tensor)

    tagged = torch.randn(3).as_subclass(Tagged)
    tagged.tag = "t"
    frozen = nn.Parameter(torch.randn(3), requires_grad=False)
    weight = nn.Parameter(torch.randn(3))
    checkpointed(fn)(tagged, frozen, weight).sum().backward()
    assert kinds[0][:3] == kinds[1][:3] == (Tagged, "t", nn.Parameter)
    assert kinds[1][3] is weight


def test_pytree_nodes_are_made_again_for_the_replay():
    class Cache:
        def __init__(self, items):
            self.items = items

    torch.utils._pytree.register_pytree_node(
        Cache, lambda cache: (list(cache.items), None), lambda items, _: Cache(list(items))
    )
    lengths = []

    def fn(x, cache):
        lengths.append(len(cache.items))
        cache.items.append(x.exp())
        return sum(cache.items).sin()

    def program(wrap):
        x = leaf(3)
        cache = Cache([x.sin()])
        wrap(fn)(x, cache).sum().backward()
        assert len(cache.items) == 2
        return x.grad

    try:
        assert_same(program, checkpointed)
    finally:
        torch.utils._pytree._deregister_pytree_node(Cache)
    assert lengths == [1, 1, 1]
