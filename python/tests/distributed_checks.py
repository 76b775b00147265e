# SPDX-License-Identifier: BSD-3-Clause

"""Checks that test_distributed.py runs on each rank: tensor parallel modules, functional collectives and a Llama in regions. Each
compares with plain PyTorch bit by bit over a few steps, and counts gloo's collectives on this rank."""

import collections
import contextlib
import functools
import io
import itertools
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.nn.functional as F
from on_ranks import (
    ENGINES,
    POLICIES,
    STEPS,
    adds_to,
    assert_as_plain,
    executed,
    local,
    rank,
    ranks_mesh,
    square_sum,
    with_torch,
    world,
    wraps,
)
from programs import leaf
from same import assert_equal, plain
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import CheckpointPolicy as TorchPolicy
from torch.utils.checkpoint import create_selective_checkpoint_contexts

import remat_meta as remat
from remat_meta import CheckpointPolicy, PolicyTable

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import distributed_train as example

CHECKS = {}
check = adds_to(CHECKS)


@functools.cache
def of_plain(program):
    return program(plain)


def assert_counts(program, wrap, in_plain, wanted):
    """Checks `program(wrap)`, which returns tensors, which must be those of plain code, and its counts of collectives in all
    steps. `in_plain`, `wanted`: the counts for one step, plainly and with `wrap`."""
    for has, (done, tensors) in ((in_plain, of_plain(program)), (wanted, program(wrap))):
        assert_equal(of_plain(program)[1], tensors)
        assert done == {kind: STEPS * number for kind, number in has.items()}, f"{done} in {STEPS} steps"


def by_each_engine(torch_has, **wanted):
    """Makes checks of a program: with each engine it must run the collectives `wanted` in each step, as plain code does, and
    with torch's checkpoint those of `torch_has`."""

    def register(program):
        name = program.__name__
        for engine in ENGINES:
            wrap = remat.checkpoint(replay=engine)
            CHECKS[f"{name}_by_{engine}"] = functools.partial(assert_counts, program, wrap, wanted, wanted)
        CHECKS[f"{name}_by_torch"] = functools.partial(assert_counts, program, with_torch, wanted, torch_has)
        return program

    return register


def train(module, call, loss_of, *inputs):
    """Trains a few steps. Returns gloo's collectives in forwards and backwards, and this rank's losses and gradients."""
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    done, tensors = collections.Counter(), []

    def step():
        loss = loss_of(call(*inputs))
        loss.backward()
        return loss.detach()

    for _ in range(STEPS):
        optimizer.zero_grad()
        counts, loss = executed(step)
        done += counts
        tensors += [local(loss)] + [local(parameter.grad).clone() for parameter in module.parameters()]
        tensors += [local(tensor.grad).clone() for tensor in inputs if tensor.requires_grad]
        optimizer.step()
    return done, tensors


# Tensor parallel modules. In each step all ranks have the same input.


def parallel_mlp(first, last, **plan):
    torch.manual_seed(3)
    module = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    return parallelize_module(module, ranks_mesh(), {"1": first, "3": last, **plan})


@by_each_engine(dict(all_reduce=2), all_reduce=2)
def tensor_parallel_mlp(wrap):
    """One all-reduce of the last layer's result, and one of the gradient of the first layer's input."""
    module = parallel_mlp(ColwiseParallel(), RowwiseParallel())
    return train(module, wrap(module), square_sum, leaf(3, 8))


@by_each_engine(dict(all_gather=3, all_reduce=2), all_gather=2, all_reduce=2)
def sequence_parallel_mlp(wrap):
    """An all-gather before and a reduce-scatter after; in backward their counterparts."""
    first, last = ColwiseParallel(input_layouts=Shard(0)), RowwiseParallel(output_layouts=Shard(0))
    module = parallel_mlp(first, last, **{"0": SequenceParallel(sequence_dim=0)})
    return train(module, wrap(module), square_sum, leaf(3, 8))


@check
def tensor_parallel_within_a_budget():
    """Steps by a plan that keeps little communicate as often as plain steps. No step is measured while the profiler runs."""

    def run(wrap):
        torch.manual_seed(3)
        layers = [nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(4)]
        plan = {"1": ColwiseParallel(), "3": RowwiseParallel()}
        module = nn.Sequential(*(parallelize_module(layer, ranks_mesh(), plan) for layer in layers))
        call = wrap(module)
        tensors = []

        def step():
            module.zero_grad()
            loss = call(torch.rand(256, 32)).square().mean()
            loss.backward()
            tensors.extend([loss.detach(), *(local(parameter.grad).clone() for parameter in module.parameters())])

        torch.manual_seed(7)
        for _ in range(4):
            step()
        done, _ = executed(lambda: [step(), step()])
        return call, done, tensors

    _, wanted, expected = run(plain)
    call, done, got = run(lambda module: remat.auto_checkpoint(module, "60%"))
    assert_equal(expected, got)
    assert wanted and done == wanted, f"{done}, plain {wanted}"
    assert len(remat.memory_plan(call).cuts.positions) > 0


@by_each_engine(dict(all_gather=2, all_reduce=1), all_gather=1, all_reduce=1)
def redistribute_inside(wrap):
    """Shards are gathered for an op; in backward each rank has a part of the gradient, which is reduced and scattered."""
    mesh = ranks_mesh()
    torch.manual_seed(3)
    x = DTensor.from_local(leaf(2, 8).detach(), mesh, [Shard(0)]).requires_grad_()
    scale = nn.Linear(8, 8)

    def fn(x):
        whole = x.redistribute(mesh, [Replicate()]).to_local(grad_placements=[Partial()])
        return scale(whole.sin()).exp() * (rank() + 1)

    return train(scale, wrap(fn), square_sum, x)


@by_each_engine(dict(all_reduce=7), all_reduce=4)
def loss_parallel_inside(wrap):
    """Three all-reduces over the classes, which are spread over ranks, and one of the input's gradient."""
    torch.manual_seed(3)
    head = nn.Linear(8, 16)
    parallelize_module(head, ranks_mesh(), ColwiseParallel(output_layouts=Shard(-1), use_local_output=False))
    targets = torch.arange(6) * 5 % 16
    with loss_parallel():
        return train(head, wrap(lambda x: F.cross_entropy(head(x), targets)), lambda loss: loss, leaf(6, 8))


# Functional collectives

REPEATED = {  # No tape may hold collectives that replays repeat.
    engine: remat.checkpoint(
        replay=engine,
        policy=PolicyTable()
        .op("_c10d_functional::*", CheckpointPolicy.RECOMPUTE)
        .op("_c10d_functional_autograd::*", CheckpointPolicy.RECOMPUTE),
    )
    for engine in ("function", "auto")
}


def functional_gather_and_scatter(wrap):
    group = dist.group.WORLD
    torch.manual_seed(3 + rank())
    layer = nn.Linear(4, 4)

    def fn(x):
        whole = fc.all_gather_tensor_autograd(layer(x).sin(), 0, group)
        return fc.reduce_scatter_tensor_autograd(whole.exp(), "sum", 0, group).cos() * 2

    return train(layer, wrap(fn), square_sum, leaf(2, 4))


def functional_all_to_all(wrap):
    group = dist.group.WORLD
    torch.manual_seed(3 + rank())
    layer = nn.Linear(4, 4)

    def fn(x):
        return fc.all_to_all_single_autograd(layer(x).sin(), None, None, group).exp().cos()

    return train(layer, wrap(fn), square_sum, leaf(2 * world(), 4))


by_each_engine(dict(all_gather=3, all_reduce=3), all_gather=2, all_reduce=2)(functional_gather_and_scatter)
by_each_engine(dict(all_to_all=3), all_to_all=2)(functional_all_to_all)


@check
def functional_gather_and_scatter_repeated_by_a_rule():
    for wrap in REPEATED.values():
        assert_counts(functional_gather_and_scatter, wrap, dict(all_gather=2, all_reduce=2), dict(all_gather=3, all_reduce=3))


@check
def functional_all_to_all_repeated_by_a_rule():
    for wrap in REPEATED.values():
        assert_counts(functional_all_to_all, wrap, dict(all_to_all=2), dict(all_to_all=3))


def assert_waited_for_inside(engine):
    """A region gets a tensor that a collective may still be writing, as in a tensor parallel model; its first op waits."""
    torch.manual_seed(rank())
    x, w = leaf(2, 4), leaf(4)
    wrap, wrong = remat.checkpoint(replay=engine), []
    for _ in range(STEPS):
        results = []
        for run in (plain, wrap):
            w.grad = None
            begun = fc.all_gather_tensor(x.detach().sin(), 0, dist.group.WORLD)
            try:
                y = run(lambda h: (h * w).sin().exp())(begun)
                y.sum().backward()
                results.append([y.detach(), w.grad])
            except Exception as error:  # raised later: the other ranks go on to the next collective
                wrong.append(error)
        if not wrong:
            assert_equal(*results)
    if wrong:
        raise wrong[0]


for _engine in ENGINES:
    CHECKS[f"argument_that_is_waited_for_inside_by_{_engine}"] = functools.partial(assert_waited_for_inside, _engine)


# In-place collectives, behind a gate that depends on data: closed in the first of three steps, open in the others.


def gated(wrap, place, is_async):
    torch.manual_seed(rank())
    x, w = leaf(2, 4), leaf(4)
    captured = torch.rand(2, 4)

    def reduce(tensor):
        work = dist.all_reduce(tensor, async_op=is_async)
        other = (w.detach() * 2).sin().sum()
        if work is not None:
            work.wait()
        return other

    def fn(x, gate, argument):
        y = (x * w).sin()
        if place == "inside":
            target = y.detach().clone()
        elif place == "captured":
            target = captured
        else:
            target = argument
        y = y * target.clone()
        if gate > 0:
            y = y * reduce(target) + target.cos()
        return y.exp()

    region, tensors = wrap(fn), []
    for gate in (0.0, 1.0, 1.0):
        argument = torch.rand(2, 4)
        y = region(x, torch.tensor(gate), argument)
        y.cos().sum().backward()
        tensors += [y.detach(), captured.clone(), argument, x.grad.clone(), w.grad.clone()]
    return tensors


@functools.cache
def plain_gated(place, is_async):
    return executed(lambda: gated(plain, place, is_async))


def assert_gated_once(place, is_async, engine, policy):
    program = functools.partial(gated, place=place, is_async=is_async)
    wanted, expected = plain_gated(place, is_async)
    assert wanted == {"all_reduce": 2}
    done, got = executed(lambda: program(remat.checkpoint(replay=engine, policy=policy)))
    assert_equal(expected, got)
    assert done == wanted


for _place, _engine in itertools.product(("inside", "captured", "argument"), ENGINES):

    def _all(place=_place, engine=_engine):
        for is_async, policy in itertools.product((False, True), POLICIES):
            assert_gated_once(place, is_async, engine, policy)

    CHECKS[f"gated_all_reduce_of_a_tensor_{_place}_by_{_engine}"] = _all


# Sends and receives, with different tensors alive on each rank


@check
def exchange_with_other_values_alive_on_each_rank():
    def run(wrap):
        torch.manual_seed(rank())
        x, w = leaf(2, 4), leaf(4)

        def fn(x):
            one = (x * w).sin()
            other, peer = torch.empty_like(one), rank() ^ 1
            sent = one.detach() * 2
            for work in dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, other, peer)]
            ):
                work.wait()
            return one.exp(), (one * other.sin()).exp()

        region = wrap(fn)
        for _ in range(STEPS):
            first, second = region(x)
            loss = first.sum()
            if rank() % 2:
                loss = loss + second.sum()
            del first, second  # the even ranks' second graph is dead
            loss.backward()
        return [x.grad, w.grad]

    assert assert_as_plain(run, wraps()) == {"send": STEPS, "recv": STEPS}


# A Llama of three layers, checkpointed by torchtitan's modes through torch's own calls


def save_every_second_product():
    """torchtitan's selective checkpointing of ops: attention, collectives and every second matrix product are kept."""
    products = collections.Counter()

    def policy(context, op, *args, **kwargs):
        kept = op in (
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
            torch.ops._c10d_functional.reduce_scatter_tensor.default,
        )
        if op == torch.ops.aten.mm.default:
            products[context.is_recompute] += 1
            kept = products[context.is_recompute] % 2 == 1
        return TorchPolicy.MUST_SAVE if kept else TorchPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def checkpoint_layers(model, mode):
    for index, (name, layer) in enumerate(model.layers.items()):
        if mode == "selective_op":
            model.layers[name] = checkpoint_wrapper(layer, context_fn=save_every_second_product)
        elif mode == "full" or (mode == "every_second" and index % 2 == 0):
            model.layers[name] = checkpoint_wrapper(layer)


def llama(sharding, put_checkpoints):
    mesh = ranks_mesh()
    torch.manual_seed(1)
    model = example.Llama()
    if sharding == "tensor_parallel":
        example.apply_tensor_parallel(model, mesh)
    put_checkpoints(model)
    if sharding == "fsdp":
        example.apply_fsdp(model, mesh)
    torch.manual_seed(rank() if sharding == "fsdp" else 0)
    tokens, targets = torch.randint(64, (2, 16)), torch.randint(64, (2, 16))
    return train(model, model, lambda logits: example.loss_of(logits, targets), tokens)


# Collectives of FSDP2, and of tensor parallel, which reduces and scatters as often as it gathers, but for one gather of the
# logits.
LLAMA_PLAIN = {"fsdp": dict(all_gather=7, all_reduce=4), "tensor_parallel": dict(all_gather=15, all_reduce=14)}
# Torch's checkpoint stops early, before a layer's last reduce-scatter.
LLAMA_TORCH = {
    ("fsdp", "full"): LLAMA_PLAIN["fsdp"],  # also in the other modes
    ("tensor_parallel", "full"): dict(all_gather=21, all_reduce=17),
    ("tensor_parallel", "selective_op"): dict(all_gather=21, all_reduce=14),
    ("tensor_parallel", "every_second"): dict(all_gather=19, all_reduce=16),
}


@functools.cache
def program_of_llama(sharding):
    """Returns a program that takes a way to checkpoint the model."""
    return lambda put: llama(sharding, (lambda model: None) if put is plain else put)


def assert_llama(sharding, put, wanted, patch=contextlib.nullcontext):
    with patch():
        assert_counts(program_of_llama(sharding), put, LLAMA_PLAIN[sharding], wanted)


def llama_checks():
    for sharding, mode in itertools.product(LLAMA_PLAIN, ("full", "selective_op", "every_second")):
        wanted, put = LLAMA_PLAIN[sharding], functools.partial(checkpoint_layers, mode=mode)
        name = f"llama_{sharding}_{mode}"
        if (sharding, mode) in LLAMA_TORCH:
            CHECKS[f"{name}_by_torch"] = functools.partial(assert_llama, sharding, put, LLAMA_TORCH[sharding, mode])
        CHECKS[f"{name}_patched"] = functools.partial(assert_llama, sharding, put, wanted, remat.patch_torch_checkpoint)
    for sharding, engine in itertools.product(LLAMA_PLAIN, ENGINES):
        put = functools.partial(example.apply_checkpoint, kind=engine)
        CHECKS[f"llama_{sharding}_by_{engine}"] = functools.partial(assert_llama, sharding, put, LLAMA_PLAIN[sharding])


llama_checks()


# Two steps of the example


@functools.cache
def example_run(parallel, kind):
    """Returns the example's output on this rank, and the collectives and kept bytes of each rank."""
    options = example.parse([f"--{parallel}", str(world()), "--checkpoint", kind, "--steps", "2"])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        of_ranks = example.train(options, "gloo", torch.device("cpu"))
    return printed.getvalue(), [collectives for collectives, _ in of_ranks], [kept for _, kept in of_ranks]


def assert_example(parallel, kind):
    printed, collectives, kept = example_run(parallel, kind)
    assert (printed, collectives) == example_run(parallel, "none")[:2]
    assert printed.count("gradients") == (2 if rank() == 0 else 0)
    assert all(kept) and not any(example_run(parallel, "none")[2])


for _parallel in ("fsdp", "tp", "pp"):
    CHECKS[f"example_{_parallel}_by_auto"] = functools.partial(assert_example, _parallel, "auto")


ON_RANKS = {
    2: tuple(CHECKS),
    4: (
        "tensor_parallel_mlp_by_auto",
        "tensor_parallel_within_a_budget",
        "sequence_parallel_mlp_by_function",
        "functional_gather_and_scatter_by_auto",
        "exchange_with_other_values_alive_on_each_rank",
    ),
}
