# SPDX-License-Identifier: BSD-3-Clause

"""The log's text of an op's arguments: all kinds can be written, and different arguments have different texts."""

import pytest
import torch
from programs import checkpointed, leaf
from same import assert_same
from torch.nn import functional as F

import remat_meta as remat

LIBRARY = torch.library.Library("remat_words", "DEF")


def define(schema, fn):
    name = schema.split("(")[0]
    LIBRARY.define(schema)
    LIBRARY.impl(name, fn, "CompositeExplicitAutograd")
    op = getattr(torch.ops.remat_words, name)
    return lambda x, *args: x * op(x.detach(), *args)  # the op has no derivative


by_text = define("by_text(Tensor x, str[] texts, Device? device=None) -> Tensor", lambda x, texts, device=None: x * len(texts))
by_numbers = define("by_numbers(Tensor x, complex[] numbers) -> Tensor", lambda x, numbers: x * sum(numbers).real)
by_dict = define("by_dict(Tensor x, Dict(str, Tensor) parts) -> Tensor", lambda x, parts: x * parts["a"])
by_lists = define("by_lists(Tensor x, Tensor?[] some, Tensor[] all) -> Tensor", lambda x, some, all: x.clone())


def complex_leaf(*shape):
    return torch.randn(*shape, dtype=torch.complex64, requires_grad=True)


COMPLEX = {
    "lerp": lambda z: torch.lerp(z, z.cos(), 0.25 + 0.5j),
    "pad": lambda z: torch.constant_pad_nd(z, (1, 2), 1 - 2j),
    "fill": lambda z: z.sin().index_fill(0, torch.tensor([0, 2]), 3 + 1j),
    "masked_fill": lambda z: z.sin().masked_fill(z.real > 0, 2j),
    "add": lambda z: z.sin().add(z, alpha=1 + 1j),
    "conv": lambda z: F.conv1d(z.sin()[None], z.cos()[:, :, None], padding="same")[0],
    "full": lambda z: z.sin() * torch.full((3, 3), 1 + 2j),
    "number": lambda z: z.sin() * (1 + 2j) + complex(0, float("nan")),
    "addcmul": lambda z: torch.addcmul(z, z.sin(), z.cos(), value=-1j),
}


@pytest.mark.parametrize("engine", ["function", "tape"])
@pytest.mark.parametrize("name", COMPLEX)
def test_ops_with_complex_numbers_among_their_arguments_replay(name, engine):
    fn = COMPLEX[name]

    def program(wrap):
        z = complex_leaf(3, 3)
        y = wrap(lambda z: fn(wrap(fn)(z)).abs())(z)
        y.sum().backward()
        return [y, z.grad]

    assert_same(program, remat.checkpoint(replay=engine))


VALUES = {
    "complex": (lambda x, v: torch.add(x.to(torch.complex64), 1, alpha=v).abs(), 1 + 1j, 1 + 2j),
    "complex in a tensor": (lambda x, v: (x.to(torch.complex64) * v).abs(), 1 + 1j, 1 + 2j),
    "list of complex": (by_numbers, [1 + 1j], [1 + 2j]),
    "texts": (lambda x, v: by_text(x, v), ["a", "b"], ["a", "c"]),
    "text": (lambda x, v: torch.div(x, 0.3, rounding_mode=v), "floor", "trunc"),
    "device": (lambda x, v: by_text(x, [], v), torch.device("cpu"), torch.device("meta")),
    "which are None": (lambda x, v: by_lists(x, v, []), [None, torch.ones(1)], [torch.ones(1), None]),
    "how long lists are": (
        lambda x, v: by_lists(x, list(torch.ones(3).split(1))[:v], list(torch.ones(3).split(1))[v:]),
        1,
        2,
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_that_differ_in_the_replay_are_told_apart(name):
    fn, first, second = VALUES[name]
    values = iter([first, second])

    def changing(x):
        return fn(x.sin(), next(values)).exp().sum()

    y = remat.checkpoint(replay="function")(changing)(leaf(2, 2))
    with pytest.raises(remat.ReplayMismatch, match="as in the forward"):
        y.backward()


@pytest.mark.parametrize("name", VALUES)
def test_the_same_values_are_the_same(name):
    fn, first, _ = VALUES[name]

    def program(wrap):
        x = leaf(2, 2)
        wrap(lambda x: fn(x.sin(), first).exp().sum())(x).backward()
        return [x.grad]

    assert_same(program, checkpointed)


def test_not_a_number_is_the_number_that_it_was():
    def program(wrap):
        x = leaf(3)
        wrap(lambda x: (x.sin().clamp(max=float("nan")) + torch.full((3,), float("nan"))).exp())(x).sum().backward()
        return [x.grad]

    assert_same(program, checkpointed)


def test_text_and_complex_numbers_are_in_the_message():
    values = iter(["floor", "trunc"])
    y = checkpointed(lambda x: torch.div(x.sin(), 0.3, rounding_mode=next(values)).exp())(leaf(2))
    with pytest.raises(remat.ReplayMismatch, match=r"'floor'.*'trunc'.*A text differs"):
        y.sum().backward()
    values = iter([1 + 2j, 1 + 3j])
    y = checkpointed(lambda x: torch.add(x.sin() * 1j, x, alpha=next(values)).abs().exp())(leaf(2))
    with pytest.raises(remat.ReplayMismatch, match=r"\[1, 2\].*\[1, 3\]"):
        y.sum().backward()


def test_dicts_and_their_tensors_can_be_written_down():
    part = torch.ones(2)

    def program(wrap):
        x = leaf(2)
        wrap(lambda x: by_dict(x.sin(), {"a": part}).exp())(x).sum().backward()
        return [x.grad]

    assert_same(program, checkpointed)
