# SPDX-License-Identifier: BSD-3-Clause

"""Strided nested tensors: they have one autograd key for all backends, and no sizes or strides."""

import itertools

import pytest
import torch
from programs import leaf
from same import assert_same
from torch import nn
from torch.nn import functional

import remat_meta as remat

pytestmark = [pytest.mark.torch_warns]  # warns of a prototype, and that there is no tape
names = itertools.count()
ENGINES = {
    "function": lambda fn: remat.checkpoint()(fn),
    "auto": lambda fn: remat.checkpoint(replay="auto", region_name=f"nested {next(names)}")(fn),
    "nested": lambda fn: remat.checkpoint()(lambda *x: remat.checkpoint()(fn)(*x) * 1),
    "hooks": lambda fn: remat.checkpoint(saved_tensors_hooks=(torch.clone, torch.clone))(fn),
}
FUNCTIONS = {
    "to_padded": lambda n, w: torch.nested.to_padded_tensor(n * 2, 0.0).sin(),
    "relu": lambda n, w: n.relu().relu(),
    "unbind": lambda n, w: torch.stack([t.exp().sum() for t in n.unbind()]).sin(),
    "linear": lambda n, w: functional.linear(n, w).relu(),
    "linear with bias": lambda n, w: functional.linear(n.relu(), w, w[0]).relu(),
    "bmm": lambda n, w: torch.bmm(n.relu(), n.transpose(1, 2)).relu(),
    "softmax": lambda n, w: functional.softmax(n, -1).relu(),
    "layer_norm": lambda n, w: functional.layer_norm(n, (4,), w[0], w[1]).relu(),
    "dropout": lambda n, w: functional.dropout(n * 2, 0.5).relu(),
    "gelu": lambda n, w: functional.gelu(n) * n,
    "attention": lambda n, w: functional.scaled_dot_product_attention(*[n.unsqueeze(1).relu()] * 3).squeeze(1).relu(),
}


def dense(tensor):
    return torch.nested.to_padded_tensor(tensor, 0.0) if tensor.is_nested else tensor


@pytest.mark.parametrize("of_parts", (False, True))
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_ops_are_plain(function, engine, of_parts):
    def program(wrap):
        parts = [torch.randn(2, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)]
        weight = torch.randn(4, 4, requires_grad=True)
        if of_parts:
            leaves, nested = parts, torch.nested.as_nested_tensor(parts)
        else:
            nested = torch.nested.nested_tensor([part.detach() for part in parts], requires_grad=True)
            leaves = [nested]
        y = wrap(FUNCTIONS[function])(nested, weight)
        dense(y).sum().backward()
        return [dense(y), weight.grad, *[dense(leaf.grad) for leaf in leaves]]

    assert_same(program, ENGINES[engine])


def test_an_encoder_layer_is_plain():
    def program(wrap):
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
        nested = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], requires_grad=True)
        y = wrap(lambda n: torch.nested.as_nested_tensor([layer(t[None])[0] for t in n.unbind()]))(nested)
        dense(y).square().sum().backward()
        return [dense(y), dense(nested.grad), *[p.grad for p in layer.parameters()]]

    assert_same(program, ENGINES["function"])


def test_a_hook_that_returns_one_for_a_plain_argument_is_named_as_the_difference():
    nest = lambda t: torch.nested.nested_tensor(list(t.detach().unbind()))  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, nest):
        y = remat.checkpoint(region_name="r")(lambda x: (x * 2).exp())(leaf(2, 3) * 1)
    with pytest.raises(remat.ReplayMismatch, match="region 'r', slot 0, op 0: .*A shape differs"):
        y.sum().backward()
