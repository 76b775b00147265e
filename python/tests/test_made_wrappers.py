# SPDX-License-Identifier: BSD-3-Clause

"""Tensors of Python classes with __torch_dispatch__ that a region's function makes by their constructors."""

import contextlib

import pytest
import torch
from programs import leaf
from same import assert_equal, plain
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.flop_counter import FlopCounterMode
from wrappers import Opaque, Passing, Quantized

import remat_meta as remat

ENGINES = ["function", "tape", "auto"]
pytestmark = pytest.mark.torch_warns  # "auto" warns once that it has no tape


class Made(torch.autograd.Function):
    """Wraps its argument by `make`, as DTensor.from_local() does."""

    @staticmethod
    def forward(ctx, x, make):
        return make(x.detach())

    @staticmethod
    def backward(ctx, grad):
        return sum_of(grad).contiguous(), None


class Taken(torch.autograd.Function):
    """Returns the tensor inside a wrapper, as DTensor.to_local() does."""

    @staticmethod
    def forward(ctx, x):
        ctx.make = KINDS["Deep two" if isinstance(getattr(x, "a", None), TwoTensor) else type(x).__name__]
        return sum_of(x) * 1

    @staticmethod
    def backward(ctx, grad):
        return ctx.make(grad.contiguous())


def sum_of(tensor):
    if isinstance(tensor, TwoTensor):
        return sum_of(tensor.a) + sum_of(tensor.b)
    return sum_of(tensor.inner) if isinstance(tensor, Opaque) else tensor


class Deep(Opaque):
    """A wrapper that holds a wrapper."""


KINDS = {
    "TwoTensor": lambda t: TwoTensor(t, t * 2),
    "Deep two": lambda t: TwoTensor(TwoTensor(t, t * 3), TwoTensor(t.sin(), t)),
    "Opaque": lambda t: Opaque(t.sin()),
    "Deep": lambda t: Deep(Opaque(t * 1)),
}
AS_IT_IS = {
    "TwoTensor": lambda t: TwoTensor(t, t),
    "Deep two": lambda t: TwoTensor(TwoTensor(t, t), TwoTensor(t, t)),
    "Opaque": Opaque,
    "Deep": lambda t: Deep(Opaque(t)),
}


def of_inside(kind, w):
    """A wrapper of an op's result, read by ops whose nodes save it."""
    return lambda x: Taken.apply((Made.apply(x.sin(), KINDS[kind]) * 2).exp().cos() * Made.apply(w * 3, KINDS[kind])).exp()


def of_captured(kind, w):
    """A wrapper of an unchanged captured tensor."""
    make = AS_IT_IS[kind]
    return lambda x: Taken.apply(Made.apply(x, KINDS[kind]) * make(w.detach())).exp().sin()


def of_an_argument(kind, w):
    make = AS_IT_IS[kind]
    return lambda x: (Taken.apply(Made.apply(x, make).exp() * w.sum()) * 2).cos()


def without_a_gradient(kind, w):
    def fn(x):
        scale = KINDS[kind](x.detach() * 2)
        return x * sum_of(scale.exp() * scale) * sum_of(scale) + w

    return fn


def viewed(kind, w):
    def fn(x):
        made = Made.apply(x @ w, KINDS[kind]).t().contiguous()
        return Taken.apply(made.reshape(2, 8)[1:].exp().view(-1) * made.flatten()[:8]).exp()

    return fn


def written_in_place(kind, w):
    def fn(x):
        made = Made.apply(x * w, KINDS[kind]).sin()
        made.mul_(2).view(-1)[:4].add_(1)
        return Taken.apply(made.cos()).exp()

    return fn


def like_another(kind, w):
    def fn(x):
        made = Made.apply(x * w, KINDS[kind])
        return Taken.apply((made + torch.ones_like(made)).exp() * torch.zeros_like(made).cos())

    return fn


def drawn(kind, w):
    def fn(x):
        made = Made.apply(x * w, KINDS[kind])
        return Taken.apply(torch.nn.functional.dropout(made, 0.5).exp() * 2).cos()

    return fn


PROGRAMS = {
    f.__name__: f
    for f in (
        of_inside,
        of_captured,
        of_an_argument,
        without_a_gradient,
        viewed,
        written_in_place,
        like_another,
        drawn,
    )
}


def steps(wrap, program, kind, nested=False):
    torch.manual_seed(0)
    x, w = leaf(4, 4), leaf(4, 4)
    fn = wrap(program(kind, w))
    if nested:
        inner = fn
        fn = wrap(lambda x: inner(x * 2).sin())
    tensors = []
    for _ in range(3):  # the third step trusts its tape
        y = fn(x)
        y.sum().backward()
        tensors += [y.detach(), x.grad.clone(), w.grad]
    return [t for t in tensors if t is not None] + [torch.rand(2)]


def assert_right_or_refused(engine, kind, program, request, nested=False, **options):
    """Checks for right gradients, or a refusal: a tape needs a class that says which tensors it consists of."""
    expected = steps(plain, PROGRAMS[program], kind, nested)
    wrap = remat.checkpoint(replay=engine, region_name=request.node.name, **options)
    saves_one = program != "without_a_gradient"
    if engine == "tape" and kind in ("Opaque", "Deep") and saves_one:
        with pytest.raises(NotImplementedError, match="without __tensor_flatten__"):
            steps(wrap, PROGRAMS[program], kind, nested)
    else:
        assert_equal(expected, steps(wrap, PROGRAMS[program], kind, nested))


@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_steps_are_those_of_a_plain_run(engine, kind, program, nested, request):
    assert_right_or_refused(engine, kind, program, request, nested)


POLICIES = {
    "compute": remat.save_compute_intensive,
    "pointwise": remat.recompute_pointwise,
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ENGINES)
def test_policies_say_what_is_kept_of_the_ops_inside(engine, kind, program, policy, request):
    assert_right_or_refused(engine, kind, program, request, policy=POLICIES[policy]())


@pytest.mark.parametrize("engine", ENGINES)
def test_weights_that_are_quantized_in_the_region(engine):
    def run(wrap):
        torch.manual_seed(0)
        x, w = leaf(4, 4), leaf(4, 4)

        def fn(x):
            scale = w.detach().abs().max() / 9
            quantized = Quantized((w.detach() / scale).round(), scale)
            return torch.nn.functional.linear(x, quantized).sin().exp()

        y = wrap(fn)(x)
        y.sum().backward()
        return [y.detach(), x.grad]

    assert_equal(run(plain), run(remat.checkpoint(replay=engine)))


@pytest.mark.parametrize("engine", ["function", "auto"])
def test_one_made_of_another_value_is_noticed(engine):
    which = iter([2, 3, 2])
    w = [None, None, torch.ones(4), torch.ones(4)]

    def fn(x):
        return Taken.apply(Made.apply(x, Opaque) * Opaque(w[next(which)])).exp()

    y = remat.checkpoint(region_name="r")(fn)(leaf(4))
    with pytest.raises(remat.ReplayMismatch, match="region 'r'.*expected aten::mul"):
        y.sum().backward()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_write_to_what_one_was_made_of_is_noticed(engine):
    w, make = torch.ones(4), AS_IT_IS["TwoTensor"]
    y = remat.checkpoint(region_name="r", replay=engine)(lambda x: Taken.apply(Made.apply(x, make) * make(w)).exp())(leaf(4))
    w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


class SavesAWrapper(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, make):
        ctx.save_for_backward(make(x.detach()))
        return torch.ones(4)

    @staticmethod
    def backward(ctx, grad):
        return grad * sum_of(ctx.saved_tensors[0]), None


@pytest.mark.parametrize("kind", ["TwoTensor", "Opaque"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_kept_result_that_a_custom_function_saves_in_one(engine, kind):
    def run(wrap):
        torch.manual_seed(0)
        x = leaf(4)
        call = plain if wrap is plain else lambda fn: remat.region(fn, "call", recompute=False)
        wrap(lambda x: SavesAWrapper.apply(call(lambda x: x * 2)(x), AS_IT_IS[kind]).exp())(x).sum().backward()
        return [x.grad]

    if engine == "tape" and kind == "Opaque":
        with pytest.raises(NotImplementedError, match="without __tensor_flatten__"):
            run(remat.checkpoint(replay=engine))
    else:
        assert_equal(run(plain), run(remat.checkpoint(replay=engine)))


class Scaled(torch.Tensor):
    """A tensor times a number that the class returns for it."""

    @staticmethod
    def __new__(cls, inner, factor):
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype, device=inner.device)

    def __init__(self, inner, factor):
        self.inner, self.factor = inner, factor

    def __tensor_flatten__(self):
        return ["inner"], self.factor

    @staticmethod
    def __tensor_unflatten__(inner, factor, size, stride):
        return Scaled(inner["inner"], factor)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return Scaled(args[0].inner, args[0].factor)
        return func(*(arg.inner * arg.factor if isinstance(arg, Scaled) else arg for arg in args), **(kwargs or {}))


def test_what_a_class_says_of_a_tensor_is_compared():
    factors, w = iter([2.0, 3.0]), torch.ones(4)
    y = remat.checkpoint(region_name="r")(lambda x: (x * Scaled(w, next(factors))).exp())(leaf(4))
    with pytest.raises(remat.ReplayMismatch, match="region 'r'.*another Python class, or its class says something else"):
        y.sum().backward()


def comm_debug():
    from torch.distributed.tensor.debug import CommDebugMode

    return CommDebugMode()


MODES = {"passing": Passing, "flops": lambda: FlopCounterMode(display=False), "comm": comm_debug}
nothing = contextlib.nullcontext


@pytest.mark.parametrize("place", ["both", "forward", "backward", "inside"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["TwoTensor", "Opaque"])
@pytest.mark.parametrize("engine", ["function", "auto"])
def test_dispatch_modes_round_them_change_nothing(engine, kind, mode, place, request):
    def run(wrap):
        torch.manual_seed(0)
        x, w = leaf(4, 4), leaf(4, 4)
        program = of_inside(kind, w)

        def fn(x):
            with MODES[mode]() if place == "inside" else nothing():
                return program(x)

        region = wrap(fn)
        tensors = []
        for _ in range(2):
            with MODES[mode]() if place in ("both", "forward") else nothing():
                y = region(x)
            with MODES[mode]() if place in ("both", "backward") else nothing():
                y.sum().backward()
            tensors += [y.detach(), x.grad.clone(), w.grad.clone()]
        return tensors

    assert_equal(run(plain), run(remat.checkpoint(replay=engine, region_name=request.node.name)))


@pytest.mark.parametrize("engine", ["function", "auto"])
def test_fake_tensors_round_a_region(engine):
    with FakeTensorMode():
        x, w = torch.rand(4, 4, requires_grad=True), torch.rand(4, 4, requires_grad=True)
        y = remat.checkpoint(replay=engine)(lambda x: ((x @ w).sin().exp() * 2).relu())(x)
        y.sum().backward()
        assert x.grad.shape == w.grad.shape == (4, 4)


class OutInHandler(TwoTensor):
    """Its handler makes a factor by a factory, and by out= into an empty tensor."""

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return OutInHandler(inner["a"], inner["b"], size, stride)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].a, args[0].b)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if func is not torch.ops.aten.mul.Tensor:
            return out
        scale = torch.arange(4).sum() * torch.mm(out.a.detach(), out.a.detach(), out=torch.empty(0)).sum() * torch.tensor(0.5)
        return TwoTensor(out.a * scale, out.b)


@pytest.mark.parametrize("policy", [None, "save_matmuls", "recompute_pointwise"])
@pytest.mark.parametrize("engine", ENGINES)
def test_factories_and_outs_in_a_handler(engine, policy, request):
    def run(wrap):
        torch.manual_seed(0)
        x, w = leaf(4, 4), OutInHandler(torch.ones(4, 4), torch.ones(4, 4))
        tensors = []
        for _ in range(3):
            y = wrap(lambda x: Taken.apply((Made.apply(x * 2, AS_IT_IS["TwoTensor"]) * w).sin().exp()))(x)
            y.sum().backward()
            tensors += [y.detach(), x.grad.clone()]
        return tensors

    assert_equal(run(plain), run(remat.checkpoint(replay=engine, policy=policy, region_name=request.node.name)))


@pytest.mark.parametrize("program", ["dropout", "rrelu"])
@pytest.mark.parametrize("engine", ENGINES)
def test_what_an_op_writes_is_saved_as_it_leaves_it(engine, program):
    run_op = {
        "dropout": lambda t: torch.nn.functional.dropout(t, 0.5),
        "rrelu": lambda t: torch.nn.functional.rrelu(t, training=True),
    }

    def run(wrap):
        torch.manual_seed(0)
        x = leaf(4, 4)
        y = wrap(lambda x: Taken.apply(run_op[program](Made.apply(x, AS_IT_IS["TwoTensor"]))).exp())(x)
        y.sum().backward()
        return [y.detach(), x.grad, torch.rand(2)]

    assert_equal(run(plain), run(remat.checkpoint(replay=engine)))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_write_to_what_is_in_a_saved_one_is_noticed(engine):
    def fn(x):
        scale = TwoTensor(x.detach() * 2, x.detach() * 3)
        y = Made.apply(x, AS_IT_IS["TwoTensor"]) * scale  # the product saves the wrapper
        scale.a.mul_(10)
        return Taken.apply(y) * 2

    y = remat.checkpoint(region_name="r", replay=engine)(fn)(leaf(4, 4))
    with pytest.raises(RuntimeError, match="modified by an inplace operation.*region 'r'"):
        y.sum().backward()


@pytest.mark.parametrize("inner", ENGINES)
@pytest.mark.parametrize("outer", ENGINES)
def test_a_nested_region_that_reads_what_is_in_its_argument(outer, inner):
    def run(outer, inner):
        torch.manual_seed(0)
        x = leaf(4, 4)
        part = inner(lambda t: (t.a.detach() + 1).exp() * Taken.apply(t).sin())
        y = outer(lambda x: part(Made.apply(x * 2, AS_IT_IS["TwoTensor"])).cos())(x)
        y.sum().backward()
        return [y.detach(), x.grad]

    assert_equal(run(plain, plain), run(remat.checkpoint(replay=outer), remat.checkpoint(replay=inner)))


def test_addresses_of_what_has_died_in_a_call_are_nobodys():
    def run(wrap):
        torch.manual_seed(0)
        x = leaf(4, 4)
        call = plain if wrap is plain else lambda fn: remat.region(fn, "c", recompute=False)

        def fn(x):
            saved = call(lambda t: (t * 2).exp().tanh())(x)
            part = x.detach() * 1.1
            return Taken.apply(Made.apply(saved, AS_IT_IS["TwoTensor"]) * TwoTensor(part, part)).tanh()

        grads = []
        for _ in range(20):
            x.grad = None
            wrap(fn)(x).sum().backward()
            grads.append(x.grad)
        return grads

    assert_equal(run(plain), run(remat.checkpoint()))


class Inheriting(TwoTensor):
    """Its __tensor_unflatten__ returns a TwoTensor."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return super().__torch_dispatch__(func, types, args, kwargs)


def test_a_class_that_does_not_make_its_own_again_has_no_tape():
    w = Inheriting(torch.ones(4), torch.ones(4))
    with pytest.raises(NotImplementedError, match="region 'r'.*without __tensor_flatten__"):
        remat.checkpoint(region_name="r", replay="tape")(lambda x: Taken.apply(Made.apply(x, AS_IT_IS["TwoTensor"]) * w))(leaf(4))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_exchange_in_a_saved_one_is_not_noticed(engine):
    """limits.md, S45: gradients use the forward's values."""

    def run(wrap, exchanges):
        torch.manual_seed(0)

        def fn(x):
            scale = TwoTensor(x.detach() * 2, x.detach() * 3)
            y = Made.apply(x, AS_IT_IS["TwoTensor"]) * scale  # the product saves the wrapper
            if exchanges:
                scale.a = scale.a * 10
            return Taken.apply(y) * 2

        x = leaf(4, 4)
        wrap(fn)(x).sum().backward()
        return [x.grad]

    assert_equal(run(plain, False), run(remat.checkpoint(replay=engine), True))
