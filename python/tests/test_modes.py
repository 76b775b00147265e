# SPDX-License-Identifier: BSD-3-Clause

"""Dispatch and function modes around regions, inside them, and around the forward or the backward alone."""

import contextlib

import pytest
import torch
from programs import leaf
from same import DEVICE, assert_equal
from torch.overrides import TorchFunctionMode
from torch.testing._internal.logging_tensor import LoggingTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from wrappers import Passing

import remat_meta as remat


def comm_debug_mode():
    from torch.distributed.tensor.debug import CommDebugMode

    return CommDebugMode()


class PassingFunctions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class TwoModes(contextlib.ExitStack):
    def __enter__(self):
        super().__enter__()
        self.enter_context(Passing())
        self.enter_context(Passing())
        return self


MODES = {
    "passing": Passing,
    "two": TwoModes,
    "flops": lambda: FlopCounterMode(display=False),
    "logging": LoggingTensorMode,
    "comm": comm_debug_mode,
    "function": PassingFunctions,
    "device": lambda: torch.device("cpu"),
}
PLACES = ["both", "forward", "backward", "region", "inside"]
ENGINES = ["function", "tape", "auto"]
nothing = contextlib.nullcontext


def plain(fn):
    return fn


def in_mode(mode, fn):
    def run(*args):
        with mode():
            return fn(*args)

    return run


def step(wrap, mode, place, nested):
    """Writes outside (batch norm), draws, writes in place, and reads `.data`, all of which modes see."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 4),
        torch.nn.BatchNorm1d(4),
        torch.nn.Dropout(0.5),
        torch.nn.ReLU(inplace=mode is not comm_debug_mode),  # comm_debug's hooks forbid in-place ops in plain runs too
        torch.nn.Linear(4, 4),
    )
    inner = wrap(net)

    def block(x):
        return inner(x.sin()).cos() * x.data.sum() + x.clone().data

    block = wrap(block) if nested else block
    if place == "region":
        block = in_mode(mode, block)
    if place == "inside":
        inner = in_mode(mode, inner)
    x = leaf(6, 4)
    with mode() if place in ("both", "forward") else nothing():
        loss = block(x).sum()
        if place == "both":
            loss.backward()
    if place != "both":
        with mode() if place == "backward" else nothing():
            loss.backward()
    return [loss, x.grad, *(p.grad for p in net.parameters()), *net.buffers(), torch.rand(2)]


@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_those_of_a_plain_run(mode, place, engine, nested):
    expected = step(plain, MODES[mode], place, nested)
    # A tape that is trusted without a mode is not written under one, so each has its own name.
    wrap = remat.checkpoint(replay=engine, region_name=f"{mode} {place} {nested}")
    assert_equal(expected, step(wrap, MODES[mode], place, nested))


def test_a_mode_sees_the_ops_of_the_forward_and_none_of_remats():
    def run(wrap):
        buffer = torch.zeros(4)

        def fn(x):
            buffer.add_(x.detach())
            return (x.sin() * buffer).exp()

        with Passing() as mode:
            y = wrap(fn)(leaf(4))
        return y, [op for op in mode.ops if op != "aten.detach.default"]

    assert run(plain)[1] == run(remat.checkpoint())[1]
    y, _ = run(remat.checkpoint())
    with Passing() as mode:
        y.sum().backward()
    assert "aten.clone.default" not in mode.ops
    assert "aten.empty.memory_format" not in mode.ops
    assert "aten.copy_.default" not in mode.ops


def test_a_strict_tape_is_written_under_a_mode():
    with Passing():
        y = remat.checkpoint(replay="tape")(lambda x: x.sin().exp())(leaf(4))
    assert [t.ops for t in remat.region_tapes()]
    y.sum().backward()


def test_views_that_only_one_run_makes_are_not_compared():
    looks = iter([True, False, False, True])

    def fn(x):
        kept = [x.view_as(x), x[0], x.t().detach()] if next(looks) else []
        y = x.sin().view(-1).exp()
        del kept
        return y

    for _ in range(2):
        x = leaf(2, 2)
        remat.checkpoint()(fn)(x).sum().backward()
        assert_equal(x.cos() * x.sin().exp(), x.grad)


OTHER_VIEWS = {
    "another part": lambda y, i: y[i],
    "another column": lambda y, i: y[:, i],
    "another shape": lambda y, i: y.view(4) if i else y,
    "another order": lambda y, i: y.t() if i else y,
    "the conjugate": lambda y, i: torch.complex(y, y).conj() if i else torch.complex(y, y),
    "the negative": lambda y, i: torch.complex(y, y).conj().imag if i else torch.complex(y, y).imag,
    "without a gradient": lambda y, i: y.detach() if i else y,
}


@pytest.mark.parametrize("other", OTHER_VIEWS)
def test_what_a_view_shows_is_compared_where_it_is_read(other):
    which = iter([0, 1])
    y = remat.checkpoint()(lambda x: (OTHER_VIEWS[other](x.sin(), next(which)) * x.sum()).abs())(leaf(2, 2))
    with pytest.raises(remat.ReplayMismatch, match=r"expected aten::mul.Tensor\("):
        y.sum().backward()


def test_the_error_says_where_a_view_begins():
    which = iter([0, 1])
    y = remat.checkpoint()(lambda x: x.sin()[:, next(which)].exp())(leaf(2, 2))
    message = rf"float32 \[2\] strided on {DEVICE}.*float32 \[2\] strided at element 1 on {DEVICE}.*another part of a tensor"
    with pytest.raises(remat.ReplayMismatch, match=message):
        y.sum().backward()


class Kept(torch.autograd.Function):
    """Saves a tensor that no op reads."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.zeros(())

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0]


def test_a_view_that_only_a_custom_function_saves_is_compared():
    which = iter([0, 1])
    y = remat.checkpoint(region_name="r")(lambda x: Kept.apply(x.sin()[next(which)]) * 2)(leaf(2, 2))
    with pytest.raises(remat.ReplayMismatch, match="region 'r', slot .*another part of one"):
        y.sum().backward()


ROOTS = {
    "an element": lambda y, i: y[i, 0],
    "a diagonal": lambda y, i: y.diagonal(i)[0],
    "one of several": lambda y, i: y.unbind()[i][0],
    "a slice": lambda y, i: y[:, i : i + 1].squeeze(1)[1],
    "transposed": lambda y, i: (y.t() if i else y)[1][0],
}


@pytest.mark.parametrize("root", ROOTS)
def test_a_view_at_which_a_backward_inside_begins_is_compared(root):
    which, gradient = iter([0, 1]), torch.ones(())  # without `gradient`, backward() runs an op that makes it

    def fn(x):
        inner = x.detach().requires_grad_()
        ROOTS[root](inner.sin(), next(which)).backward(gradient)
        return (x * inner.grad).exp()

    y = remat.checkpoint(region_name="r")(fn)(leaf(2, 2))
    with pytest.raises(remat.ReplayMismatch, match="region 'r', slot .*, backward 0 inside.*parts of tensors"):
        y.sum().backward()


@pytest.mark.parametrize("root", ROOTS)
@pytest.mark.parametrize("place", ["both", "forward", "backward"])
def test_under_a_mode_it_is_the_same(root, place):
    def run(wrap):
        torch.manual_seed(0)

        def fn(x):
            inner = x.detach().requires_grad_()
            ROOTS[root](inner.sin().t().reshape(2, 2), 1).backward()
            return (x * inner.grad).exp()

        x = leaf(2, 2)
        with Passing() if place in ("both", "forward") else nothing():
            y = wrap(fn)(x)
        with Passing() if place in ("both", "backward") else nothing():
            y.sum().backward()
        return [y, x.grad]

    assert_equal(run(plain), run(remat.checkpoint()))


@pytest.mark.parametrize("place", PLACES)
def test_reshape_which_calls_other_views_under_a_mode(place):
    def run(wrap):
        torch.manual_seed(0)
        x = leaf(3, 4)
        fn = wrap(lambda x: x.sin().t().reshape(3, 4).exp().transpose(0, 1).reshape(4, 3).cos())
        if place in ("region", "inside"):
            fn = in_mode(Passing, fn)
        with Passing() if place in ("both", "forward") else nothing():
            y = fn(x)
        with Passing() if place in ("both", "backward") else nothing():
            y.sum().backward()
        return [y, x.grad]

    assert_equal(run(plain), run(remat.checkpoint()))


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.Tensor.sin else result


def test_a_function_mode_of_the_forward_is_that_of_the_replay():
    def run(wrap):
        torch.manual_seed(0)
        x = leaf(4)
        with Doubling():
            y = wrap(lambda x: x.sin().exp())(x)
        y.sum().backward()
        return [y, x.grad]

    assert_equal(run(plain), run(remat.checkpoint()))
    assert torch._C._len_torch_function_stack() == 0


def test_a_function_mode_of_the_backward_is_not():
    def run(wrap):
        torch.manual_seed(0)
        x = leaf(4)
        y = wrap(lambda x: x.sin().exp())(x)
        with Doubling():
            y.sum().backward()
            assert torch._C._len_torch_function_stack() == 1
        return [y, x.grad]

    assert_equal(run(plain), run(remat.checkpoint()))


@pytest.mark.parametrize("place", ["forward", "backward", "both"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", ["passing", "two", "flops", "comm"])
def test_ops_that_go_to_a_mode_from_below_autograd_are_the_functions_own(mode, engine, place):
    def run(wrap):
        torch.manual_seed(0)
        x = leaf(4)

        def fn(x):
            return (x.sin() * torch.rand_like(x) + torch.zeros_like(x)).exp()

        with MODES[mode]() if place in ("forward", "both") else nothing():
            y = wrap(fn)(x)
            if place == "both":
                y.sum().backward()
        if place != "both":
            with MODES[mode]() if place == "backward" else nothing():
                y.sum().backward()
        return [y, x.grad, torch.rand(2)]

    assert_equal(run(plain), run(remat.checkpoint(replay=engine)))


class Doubled(TorchDispatchMode):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return result * self.factor if func is torch.ops.aten.sin.default else result


@pytest.mark.torch_warns
@pytest.mark.parametrize("factors", [(2,), (1, 2), (1, 1, 3), (3, 1, 2)])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_mode_that_computes_something_else_is_right_or_refused(engine, factors):
    def run(wrap):
        torch.manual_seed(0)
        grads = []
        for factor in factors:
            x = leaf(4)

            def fn(x, factor=factor):
                with Doubled(factor):
                    y = x.sin()
                return y.exp()

            wrap(fn)(x).sum().backward()
            grads.append(x.grad)
        return grads

    wrap = remat.checkpoint(region_name=f"computes {factors} {engine}", replay=engine)
    if engine == "function":
        return assert_equal(run(plain), run(wrap))
    with pytest.raises(RuntimeError, match="expected the values that the forward saved"):
        run(wrap)


@pytest.mark.parametrize("engine", ("tape", "auto"))
def test_a_trusted_tape_is_compared_again_under_a_mode(engine):
    def fn(x, mode):
        with mode:
            y = x.sin()
        return y.exp()

    wrapped = remat.checkpoint(region_name=f"now and then {engine}", replay=engine)(fn)
    for mode in (nothing(), nothing(), Passing(), nothing(), Passing()):
        x = leaf(4)
        plain_x = x.detach().clone().requires_grad_()
        wrapped(x, mode).sum().backward()
        fn(plain_x, mode).sum().backward()
        assert_equal([x.grad], [plain_x.grad])
    with pytest.raises(RuntimeError, match="expected the values that the forward saved"):
        wrapped(leaf(4), Doubled(2)).sum().backward()


class Counting(TorchDispatchMode):
    def __init__(self, count):
        super().__init__()
        self.count = count

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mm.default:
            self.count.add_(1)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_mode_of_the_function_that_writes_outside_is_refused(engine):
    count, w = torch.zeros(()), leaf(4, 4)

    def fn(x):
        with Counting(count):
            return (x.sin() @ w).exp()

    with pytest.raises(NotImplementedError, match="region 'r', op aten::mm: .*__torch_dispatch__.*aten::add_"):
        remat.checkpoint(region_name="r", replay=engine)(fn)(leaf(4, 4))


@pytest.mark.parametrize("engine", ENGINES)
def test_one_round_the_region_writes_once(engine):
    count, w = torch.zeros(()), leaf(4, 4)
    with Counting(count):
        y = remat.checkpoint(replay=engine)(lambda x: (x.sin() @ w).exp())(leaf(4, 4))
    y.sum().backward()
    assert count == 1


def test_one_that_writes_what_it_makes_itself_may():
    class Filling(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func is not torch.ops.aten.mm.default:
                return result
            scratch = torch.empty_like(result)
            scratch.copy_(result).mul_(2)
            return scratch.clone()

    def run(wrap):
        torch.manual_seed(0)
        x, w = leaf(4, 4), leaf(4, 4)

        def fn(x):
            with Filling():
                y = x.sin() @ w
                y.mul_(0.5)
                return y.exp() * torch.rand(4)

        y = wrap(fn)(x)
        y.sum().backward()
        return [y, x.grad, w.grad]

    assert_equal(run(plain), run(remat.checkpoint()))
