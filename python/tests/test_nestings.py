# SPDX-License-Identifier: BSD-3-Clause

"""Regions and SAVE calls accept any nesting of tensors that a plain call accepts."""

import collections

import hypothesis
import hypothesis.strategies as some
import torch
from programs import checkpointed
from same import assert_equal, plain

import remat_meta as remat

Pair = collections.namedtuple("Pair", "first second")
keys = some.text("abc", min_size=1, max_size=2) | some.integers(0, 3)
nestings = some.recursive(
    some.integers(1, 3),  # how often a leaf is multiplied
    lambda inner: some.one_of(
        some.lists(inner, max_size=3),
        some.lists(inner, max_size=3).map(tuple),
        some.dictionaries(keys, inner, max_size=3),
        some.dictionaries(keys, inner, max_size=3).map(collections.OrderedDict),
        some.tuples(inner, inner).map(lambda pair: Pair(*pair)),
        some.tuples(inner, inner).map(torch.return_types.max),
    ),
    max_leaves=8,
)


def mapped(fn, nesting):
    """Returns the nesting with fn(leaf) for each leaf; written by hand, so that pytrees are not tested with themselves."""
    if isinstance(nesting, dict):
        return type(nesting)((key, mapped(fn, value)) for key, value in nesting.items())
    if isinstance(nesting, Pair):
        return Pair(*(mapped(fn, value) for value in nesting))
    if isinstance(nesting, tuple | list):
        return type(nesting)([mapped(fn, value) for value in nesting])
    return fn(nesting)


def form(nesting):
    """Returns types, lengths and keys in order."""
    if isinstance(nesting, dict):
        return type(nesting), [(key, form(value)) for key, value in nesting.items()]
    if isinstance(nesting, tuple | list):
        return type(nesting), [form(value) for value in nesting]
    return type(nesting)


def leaves(nesting):
    found = []
    mapped(found.append, nesting)
    return found


def step(wrap, save, nesting):
    """Returns result and gradient of a step whose arguments and results are nested like `nesting`."""
    x = torch.linspace(0.1, 1, 3).requires_grad_()

    def fn(x, arguments):
        results = mapped(lambda t: (t * x).exp(), arguments)
        return save(lambda nesting: mapped(torch.sin, nesting))(results), mapped(torch.cos, results)

    out = wrap(fn)(x, mapped(lambda n: x.detach() * n, nesting))
    if tensors := leaves(out[0]) + leaves(out[1]):
        sum(t.sum() for t in tensors).backward()
    return out, x.grad


@hypothesis.settings(max_examples=150, deadline=None, database=None, derandomize=True)
@hypothesis.given(nestings)
def test_nestings_go_round(nesting):
    expected, gradient = step(plain, plain, nesting)
    out, got = step(checkpointed, lambda fn: remat.region(fn, "save", recompute=False), nesting)
    assert form(out) == form(expected)
    assert_equal(leaves(expected[0]) + leaves(expected[1]), leaves(out[0]) + leaves(out[1]))
    assert (gradient is None) == (got is None)
    if gradient is not None:
        assert_equal(gradient, got)
