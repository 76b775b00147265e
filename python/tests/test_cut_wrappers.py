# SPDX-License-Identifier: BSD-3-Clause

"""Tensors of Python classes on cut tapes, in profiles and within budgets: DTensors on one rank, jagged tensors."""

import copy
import functools
import json

import pytest
import torch
import torch.distributed as dist
from budget_trainer import MEASURED, train, trainers
from programs import leaf
from same import assert_same
from test_cuts import cut, ops_of
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from wrappers import Opaque

import remat_meta as remat

if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("needs gloo", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_module

pytestmark = pytest.mark.torch_warns  # DTensor warns of random numbers on CPUs


@pytest.fixture(scope="module", autouse=True)
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Lambda(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def halves(x):
    a, b = x.chunk(2, -1)
    return torch.cat([a.sin() * b.cos(), a.exp() * b], -1)


INNER = {
    "gelu": nn.functional.gelu,
    "in place": lambda x: (x * 2).sigmoid_().add(1).relu_(),
    "written": lambda x: x.sin().mul_(2).add(x).mul_(x),
    "views": lambda x: x.unflatten(-1, (4, -1)).transpose(0, 1).sin().transpose(0, 1).flatten(-2),
    "halves": halves,
    "dropout": lambda x: nn.functional.dropout(x.sin(), 0.3),
    "saved alone": lambda x: x.square().tanh(),
}


def blocks(inner, count=3):
    torch.manual_seed(1)
    parts = (
        nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), Lambda(INNER[inner]), nn.Linear(32, 16)) for _ in range(count)
    )
    return nn.Sequential(*parts)


@functools.cache
def mesh():
    return init_device_mesh("cpu", (1,))


class Distributed(nn.Module):
    """Converts its argument to DTensors, and the module's result to a plain tensor."""

    def __init__(self, module):
        super().__init__()
        self.module = distribute_module(module, mesh())

    def forward(self, x):
        y = DTensor.from_local(x, mesh(), [Shard(0)])
        return self.module(y).to_local()


class Jagged(nn.Module):
    """Converts its argument to rows of different lengths."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        offsets = torch.tensor([0, 5, len(x) - 2, len(x)])
        return self.module(torch.nested.nested_tensor_from_jagged(x, offsets)).values()


CASES = {f"DTensor, {inner}": (Distributed, inner) for inner in INNER} | {"jagged": (Jagged, "gelu")}


def model_of(case, count=3):
    make, inner = CASES[case]
    return make(blocks(inner, count))


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_cut_anywhere_it_is_bitwise_plain(case, groups):
    model_of(case)(leaf(12, 16))  # the first call of a process caches constants
    records = len(ops_of(model_of(case), leaf(12, 16).sin()))
    for step in (1, 2, records // 3):
        positions = list(range(step, records, step))
        count = len(positions) + 1
        nested = [(0, count), (0, count // 2), (count // 2, count)]
        cuts = remat.Cuts(positions, groups=[g for g in nested if g[1] - g[0] > 1] if groups else [])

        def program(wrap):
            model, x = model_of(case), leaf(12, 16)
            region = wrap(model)
            for _ in range(2):
                region(x.sin()).exp().sum().backward()
            return [x.grad, *(local(p.grad) for p in model.parameters())]

        assert_same(program, cut(cuts))


def profile_of(model):
    x = torch.rand(64, 16)
    return json.loads(remat.profile(lambda: model(x).square().sum())().to_json())


# Without "written", because the copy that autograd makes before that write is an op of the handler.
@pytest.mark.parametrize("inner", sorted(INNER.keys() - {"written"}))
def test_a_profile_is_that_of_plain_tensors(inner):
    plain, wrapped = profile_of(blocks(inner)), profile_of(Distributed(blocks(inner)))
    for name in ("values", "plain_peak_bytes", "end_bytes"):
        assert plain[name] == wrapped[name]
    assert [record["op"] for record in plain["records"]] == [record["op"] for record in wrapped["records"]]
    assert [slot[:2] for slot in plain["slots"]] == [slot[:2] for slot in wrapped["slots"]]
    nodes = [
        [(node["name"], node["record"], node["inside_bytes"]) for node in of["nodes"] if not node["name"].startswith("_")]
        for of in (plain, wrapped)
    ]
    assert nodes[0] == nodes[1]


@pytest.mark.parametrize("case", CASES)
def test_steps_keep_to_a_budget(case):
    model = model_of(case, count=5)
    plain, planned = trainers("65%", model)
    run = lambda model, x: model(x).square().mean()  # noqa: E731
    peaks = train(plain, planned, [torch.rand(64, 16) for _ in range(MEASURED + 3)], run=run)
    plan = remat.memory_plan(planned.model)
    assert len(plan.cuts.positions) > 0
    assert peaks[-1][1] <= plan.budget_bytes < peaks[-1][0]


class Moved(nn.Module):
    """Redistributes a DTensor between its blocks."""

    def __init__(self, module):
        super().__init__()
        self.module = Distributed(module).module

    def forward(self, x):
        y = DTensor.from_local(x, mesh(), [Shard(0)])
        for block in self.module:
            y = block(y).redistribute(mesh(), [Shard(1)]).redistribute(mesh(), [Shard(0)])
        return y.to_local()


def test_redistributed_within_a_budget():
    model = Moved(blocks("gelu", count=5))
    other = copy.deepcopy(model)
    call = remat.auto_checkpoint(model, "60%")
    for seed in range(MEASURED + 3):
        torch.manual_seed(seed)
        x = torch.rand(64, 16)
        for module in (other, call):
            module(x).square().sum().backward()
        for a, b in zip(other.parameters(), model.parameters(), strict=True):
            assert torch.equal(local(a.grad), local(b.grad))
    assert len(remat.memory_plan(call).cuts.positions) > 0


class Scaled(Opaque):
    """Its handler of rrelu, which saves the noise that it writes, runs another op first and ends with views; its handler of
    bessel_j0 throws."""

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Scaled(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.rrelu_with_noise.default:
            args = (args[0].inner * args[0].inner.cos(), *args[1:])
            return Scaled(super().__torch_dispatch__(func, types, args, kwargs).inner.unsqueeze(0).squeeze(0))
        if func is torch.ops.aten.special_bessel_j0.default:
            args[0].inner.exp()
            raise NotImplementedError("no bessel_j0")
        return super().__torch_dispatch__(func, types, args, kwargs)


class Wrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return Scaled(x.detach())

    @staticmethod
    def backward(ctx, grad):
        return grad.inner


class Unwrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.inner.detach()

    @staticmethod
    def backward(ctx, grad):
        return Scaled(grad)


@pytest.mark.parametrize("policy", [None, "cos"])
@pytest.mark.parametrize(
    "options", [{"replay": "function"}, {"replay": "tape"}, {"cuts": [1]}, {"cuts": [2]}, {"cuts": [5]}], ids=str
)
def test_calls_in_the_handler_of_an_op_that_saves_what_it_writes(options, policy):
    if "cuts" in options:
        options = {"replay": "tape", "cuts": remat.Cuts(options["cuts"])}
    table = remat.PolicyTable().op("aten::cos", remat.CheckpointPolicy.SAVE) if policy else None

    def program(wrap):
        x = leaf(4, 4)
        wrap(lambda x: Unwrap.apply(nn.functional.rrelu(Wrap.apply(x * 2), training=True)))(x).exp().sum().backward()
        return x.grad

    assert_same(program, remat.checkpoint(policy=table, **options))


def falls_back(x):
    y = Wrap.apply(x)
    try:
        y = torch.special.bessel_j0(y)
    except NotImplementedError:
        y = y.sin()
    return Unwrap.apply(y)


def test_handlers_that_throw_have_no_part_in_what_is_measured():
    torch.manual_seed(1)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(16, 16), Lambda(falls_back), nn.Tanh())))
    plain, planned = trainers("70%", model)
    run = lambda model, x: model(x).square().mean()  # noqa: E731
    train(plain, planned, [torch.rand(64, 16) for _ in range(MEASURED + 2)], run=run)
    plan = remat.memory_plan(planned.model)
    assert 0 < plan.predicted_overhead < 1
    profile = json.loads(remat.profile(lambda: model(torch.rand(64, 16)).sum())().to_json())
    assert all(0 <= node["us"] < 1e6 for node in profile["nodes"])


def test_profiles_refuse_what_is_saved_before_a_handler_has_made_it():
    fn = lambda x: Unwrap.apply(nn.functional.rrelu(Wrap.apply(x * 2), training=True)).exp().sum()  # noqa: E731
    with pytest.raises(NotImplementedError, match="op aten::rrelu_with_noise: expected a tensor that is saved when"):
        remat.profile(lambda: fn(leaf(4, 4)))()


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.detach()
        return TwoTensor(x, x)

    @staticmethod
    def backward(ctx, grad):
        return grad.a + grad.b


class First(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.a.detach()

    @staticmethod
    def backward(ctx, grad):
        return TwoTensor(grad, torch.zeros_like(grad))


class Squared(torch.autograd.Function):
    """Saves its argument."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return First.apply(x).square()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return TwoTensor(x.a * 2 * grad, torch.zeros_like(grad))


def test_two_parts_on_one_memory_are_one():
    def program(wrap):
        x = leaf(4, 4)
        wrap(lambda x: Squared.apply(Twice.apply(x.sin())).exp().cos())(x).sum().backward()
        return x.grad

    assert_same(program, cut(remat.Cuts([1, 2])))
