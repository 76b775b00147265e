# SPDX-License-Identifier: BSD-3-Clause

"""Modules whose parameters are replaced for a call, and DistributedDataParallel."""

import pytest
import torch
from programs import leaf
from same import assert_equal
from torch.func import functional_call
from torch.nn.utils import stateless

import remat_meta as remat

ENGINES = ["function", "tape", "auto"]


def plain(fn):
    return fn


class Net(torch.nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.first = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU())
        self.second = torch.nn.Linear(4, 4)
        self.wrap = wrap

    def forward(self, x):
        def rest(h):
            return self.second(h.sin()) + self.wrap(self.second)(h)

        return self.wrap(rest)(self.wrap(self.first)(x))


def step(wrap, call):
    torch.manual_seed(0)
    net = Net(wrap)
    x = leaf(6, 4)
    start = {name: torch.randn_like(p).requires_grad_() for name, p in net.named_parameters()}
    given = {name: p * 2 for name, p in start.items()}
    buffers = {name: b.clone() for name, b in net.named_buffers()}
    y = call(net, {**given, **buffers}, (x,))
    y.sum().backward()
    own = [p.grad for p in net.parameters()]
    assert own == [None] * len(own)
    return [y, x.grad, *(p.grad for p in start.values()), *buffers.values(), *net.buffers()]


@pytest.mark.parametrize("engine", ENGINES)
def test_functional_call_round_regions(engine):
    assert_equal(step(plain, functional_call), step(remat.checkpoint(replay=engine), functional_call))


def test_the_older_name_of_it():
    call = stateless._functional_call
    assert_equal(step(plain, call), step(remat.checkpoint(), call))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_inner_loop_of_steps_on_fast_weights(engine):
    def run(wrap):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
        block = wrap(net)
        holder = torch.nn.Module()
        holder.net = net
        holder.forward = lambda x: block(x)
        weights = {f"net.{name}": p for name, p in net.named_parameters()}
        x = torch.randn(3, 4)
        for _ in range(3):
            loss = functional_call(holder, weights, (x,)).square().sum()
            grads = torch.autograd.grad(loss, list(weights.values()), create_graph=False)
            weights = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), grads, strict=True)}
        functional_call(holder, weights, (x,)).square().sum().backward()
        return [p.grad for p in net.parameters()]

    assert_equal(run(plain), run(remat.checkpoint(replay=engine)))


def test_the_module_has_its_own_parameters_after_an_error_in_the_replay():
    net = torch.nn.Linear(4, 4)
    own = net.weight
    runs = []

    def fn(x):
        runs.append(x)
        if len(runs) == 2:
            raise ValueError("in the replay")
        return net(x).exp()

    holder = torch.nn.Module()
    holder.net = net
    holder.forward = lambda x: remat.checkpoint()(fn)(x)
    y = functional_call(holder, {"net.weight": leaf(4, 4)}, (leaf(2, 4),))
    with pytest.raises(ValueError, match="in the replay"):
        y.sum().backward()
    assert net.weight is own


@pytest.fixture
def one_process(tmp_path):
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def ddp_step(wrap, outside, **options):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    x = leaf(2, 4)
    if outside:
        model = wrap(torch.nn.parallel.DistributedDataParallel(net, **options))
    else:
        inner = torch.nn.Sequential(net)
        inner.forward = wrap(lambda x: net(x))
        model = torch.nn.parallel.DistributedDataParallel(inner, **options)
    for _ in range(2):
        model(x.sin()).exp().sum().backward()
    return [x.grad, *(p.grad for p in net.parameters())]


def test_a_region_round_ddp_that_delays_is_refused_and_says_what_to_do(one_process):
    net = torch.nn.Linear(4, 4)
    delayed = [("weight", net.weight)]
    ddp = torch.nn.parallel.DistributedDataParallel(
        net, delay_all_reduce_named_params=delayed, param_to_hook_all_reduce=net.weight
    )
    with pytest.raises(NotImplementedError, match="DistributedDataParallel.*outside of regions.*Put the regions inside"):
        remat.checkpoint()(ddp)(leaf(2, 4))


@pytest.mark.parametrize("engine", ENGINES)
def test_regions_round_ddp_work(one_process, engine):
    assert_equal(ddp_step(plain, outside=True), ddp_step(remat.checkpoint(replay=engine), outside=True))


@pytest.mark.parametrize("engine", ENGINES)
def test_regions_inside_of_ddp_work(one_process, engine):
    assert_equal(ddp_step(plain, outside=False), ddp_step(remat.checkpoint(replay=engine), outside=False))
