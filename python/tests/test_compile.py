# SPDX-License-Identifier: BSD-3-Clause

"""torch.compile around and inside regions: right gradients, and no compilation in backward."""

import pytest
import torch
from same import assert_equal
from torch._dynamo.testing import CompileCounterWithBackend

import remat_meta as remat

pytestmark = [pytest.mark.torch_warns, pytest.mark.usefixtures("fresh_compiler")]


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def body(x):
    y = x.sin()
    return (y * x).exp() + y


def grads(fn, x):
    x.grad = None
    fn(x).sum().backward()
    return x.grad


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_region_inside_a_compiled_function_gives_right_gradients(backend):
    x = leaf(4)
    expected = grads(lambda x: body(x).tan() * 2, x)
    region = remat.checkpoint()(body)
    compiled = torch.compile(lambda x: region(x).tan() * 2, backend=backend)
    for _ in range(3):
        torch.testing.assert_close(grads(compiled, x), expected, rtol=1e-6, atol=0)  # fused kernels


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_function_inside_a_region_is_compiled_once(backend):
    counter = CompileCounterWithBackend(backend)
    x = leaf(4)
    expected = grads(body, x)
    region = remat.checkpoint()(torch.compile(body, backend=counter))
    for _ in range(3):
        assert_equal(expected, grads(region, x))
    assert counter.frame_count == 1


OPTIONS = {
    "function": {},
    "auto": {"replay": "auto"},
    "tape": {"replay": "tape"},
    "policy": {"policy": "save_matmuls"},
    "a call": {},
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("options", OPTIONS)
def test_what_a_compiler_runs_in_the_first_call_is_not_the_regions(options, backend):
    def product(x):
        return body(x @ x.t())

    x = leaf(4, 4)
    fn = compiled = torch.compile(product, backend=backend)
    if options == "a call":
        fn = remat.native_op(compiled, "compiled", remat.CheckpointPolicy.SAVE)
    region = remat.checkpoint(region_name=f"{backend}, {options}", **OPTIONS[options])(lambda x: fn(x * 2).tanh())
    for _ in range(2):
        assert_equal(grads(lambda x: product(x * 2).tanh(), x), grads(region, x))


@pytest.mark.parametrize("options", OPTIONS)
def test_a_recompilation_between_forward_and_replay(options):
    compiled = torch.compile(body, backend="aot_eager")
    fn = remat.native_op(compiled, "compiled", remat.CheckpointPolicy.SAVE) if options == "a call" else compiled
    region = remat.checkpoint(region_name=f"again, {options}", **OPTIONS[options])(fn)
    x = leaf(4, 4)
    y = region(x)
    torch._dynamo.reset()
    for n in (3, 5, 7):
        short = leaf(4, n)
        assert_equal(grads(body, short), grads(region, short))
    y.sum().backward()
    assert_equal(grads(body, x.detach().clone().requires_grad_()), x.grad)
