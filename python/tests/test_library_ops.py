# SPDX-License-Identifier: BSD-3-Clause

"""Library ops that write arguments which their schemas do not mark, and memory that is resized in a region."""

import pytest
import torch
from programs import leaf
from same import assert_equal, plain

import remat_meta as remat
from remat_meta import CheckpointPolicy

ENGINES = ("function", "tape", "auto")


@torch.library.custom_op("remat_test::unmarked_add_", mutates_args=())
def unmarked_add_(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    state.add_(1)
    return x * 2


@torch.library.custom_op("remat_test::unmarked_numpy", mutates_args=())
def unmarked_numpy(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    state.numpy()[...] += 1
    return x * 2


@torch.library.custom_op("remat_test::unmarked_in_list", mutates_args=())
def unmarked_in_list(x: torch.Tensor, states: list[torch.Tensor]) -> torch.Tensor:
    states[1].data.add_(3)
    return x * 2


@torch.library.custom_op("remat_test::marked", mutates_args={"state"})
def marked(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    state.add_(x.sum())
    return x * 2


@torch.library.custom_op("remat_test::unknown", mutates_args="unknown")
def unknown(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    state.add_(x.sum())
    return x * 2


@torch.library.custom_op("remat_test::pure", mutates_args=())
def pure(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    return x * state


for name in (unmarked_add_, unmarked_numpy):
    name.register_autograd(lambda ctx, grad: (grad * 2, None))
pure.register_autograd(
    lambda ctx, grad: (grad * ctx.saved_tensors[0], None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]),
)
unmarked_in_list.register_autograd(lambda ctx, grad: (grad * 2, [None, None]))

UNMARKED = {
    "version": lambda x, state: unmarked_add_(x, state),
    "bytes": lambda x, state: unmarked_numpy(x, state),
    "list": lambda x, state: unmarked_in_list(x, [state + 1, state]),
}


@pytest.mark.parametrize("replay", ENGINES)
@pytest.mark.parametrize("which", UNMARKED)
def test_an_unmarked_write_of_a_library_op_raises_in_the_forward(which, replay):
    state = torch.zeros(1000)
    op = UNMARKED[which]
    with pytest.raises(NotImplementedError, match=r"op remat_test::\w+, argument 'states?' .*mutates_args"):
        remat.checkpoint(replay=replay)(lambda x: op(x.sin(), state).cos() * state.sum())(leaf(3))


@pytest.mark.parametrize("policy", [CheckpointPolicy.SAVE, CheckpointPolicy.RECOMPUTE])
def test_an_unmarked_write_in_a_named_call_raises(policy):
    call = remat.native_op(unmarked_add_, "call", policy)

    def fn(x):
        state = x.detach().exp()
        return call(x.sin(), state).cos() * state

    with pytest.raises(NotImplementedError, match="unmarked"):
        remat.checkpoint()(fn)(leaf(3))


@pytest.mark.parametrize("replay", ENGINES)
@pytest.mark.parametrize("op", [marked, unknown, pure])
def test_marked_writes_and_pure_ops_of_libraries_are_right(op, replay):
    def run(wrap):
        torch.manual_seed(0)
        x, tensors = leaf(3), []
        state = torch.rand(3)
        block = wrap(lambda x: op(x if op is pure else x.detach(), state).cos() * state.clone() * x.sin())
        for _ in range(3):
            y = block(x)
            y.sum().backward()
            tensors += [y.detach(), x.grad.clone(), state.clone()]
        return tensors

    assert_equal(run(plain), run(remat.checkpoint(replay=replay)))


# Memory that is freed and filled inside the region


def bytes_of(tensor):
    return tensor.untyped_storage()


@pytest.mark.parametrize("determinism", ["metadata", "none"])
@pytest.mark.parametrize("replay", ENGINES)
def test_a_weight_that_is_freed_in_the_region_raises(replay, determinism):
    weight = torch.nn.Parameter(torch.rand(3))

    def fn(x):
        y = (x * weight).sin()
        bytes_of(weight).resize_(0)
        return y.exp()

    with pytest.raises(NotImplementedError, match="keep its size.*12 bytes that has 0.*inside the sharded module"):
        remat.checkpoint(replay=replay, determinism_check=determinism)(fn)(leaf(3))


def test_a_weight_that_is_filled_and_freed_in_the_region_raises():
    weight = torch.nn.Parameter(torch.rand(3))
    host = weight.detach().clone()
    bytes_of(weight).resize_(0)

    def fn(x):
        bytes_of(weight).resize_(12)
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(weight):
            weight.copy_(host)
        y = (x * weight).sin()
        bytes_of(weight).resize_(0)
        return y.exp()

    with pytest.raises(NotImplementedError, match="keep its size"):
        remat.checkpoint()(fn)(leaf(3))


@pytest.mark.parametrize("replay", ENGINES)
def test_a_weight_that_is_filled_in_the_region_and_stays_is_right(replay):
    def run(wrap):
        torch.manual_seed(0)
        weight, x = torch.nn.Parameter(torch.rand(3)), leaf(3)
        tensors = []

        def fn(x, host):
            with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(weight):
                weight.copy_(host)
            return (x * weight).sin().exp()

        for _ in range(3):
            y = wrap(fn)(x, torch.rand(3))
            y.sum().backward()
            tensors += [y.detach(), x.grad.clone(), weight.grad.clone()]
        return tensors

    assert_equal(run(plain), run(remat.checkpoint(replay=replay)))


def test_without_backward_nothing_is_refused():
    weight = torch.rand(3)

    def fn(x):
        y = (x * weight).sin()
        bytes_of(weight).resize_(0)
        return y

    with torch.no_grad():
        assert remat.checkpoint()(fn)(leaf(3)).shape == (3,)
