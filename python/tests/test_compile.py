# SPDX-License-Identifier: BSD-3-Clause

"""torch.compile around and inside regions: right gradients, and no compilation in backward."""

import pytest
import torch
from same import assert_equal

import remat_meta as remat

pytestmark = pytest.mark.torch_warns


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def body(x):
    y = x.sin()
    return (y * x).exp() + y


def grads(fn, x):
    x.grad = None
    fn(x).sum().backward()
    return x.grad


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_region_inside_a_compiled_function_gives_right_gradients(backend):
    x = leaf(4)
    expected = grads(lambda x: body(x).tan() * 2, x)
    region = remat.checkpoint()(body)
    compiled = torch.compile(lambda x: region(x).tan() * 2, backend=backend)
    for _ in range(3):
        torch.testing.assert_close(grads(compiled, x), expected, rtol=1e-6, atol=0)  # fused kernels


def test_a_compiled_function_inside_a_region_is_compiled_once():
    compiles = []

    def backend(graph, inputs):
        compiles.append(1)
        return graph.forward

    x = leaf(4)
    expected = grads(body, x)
    region = remat.checkpoint()(torch.compile(body, backend=backend))
    for _ in range(3):
        assert_equal(expected, grads(region, x))
    assert len(compiles) == 1


@pytest.mark.parametrize("replay", ["function", "auto"])
def test_a_compiler_may_take_gradients_of_tensors_without_memory_inside_a_region(replay):
    x = leaf(4)
    expected = grads(body, x)
    compiled = torch.compile(body, backend="aot_eager")
    region = remat.checkpoint(region_name=f"aot, {replay}", replay=replay)(compiled)
    try:
        grads(region, x)  # the ops of the compiler are taken for the region's: limits.md, J7
    except remat.ReplayMismatch:
        pass
    for _ in range(2):
        assert_equal(expected, grads(region, x))
