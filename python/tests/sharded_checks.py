# SPDX-License-Identifier: BSD-3-Clause

"""What test_sharded.py runs on each rank: modules that FSDP1, FSDP2 or DDP has taken, with regions inside and around.
Each check compares with the same module without remat, bit by bit, and counts the collectives that are executed."""

import contextlib
import datetime
import gc
import itertools
import time
import warnings

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from on_ranks import (
    ENGINES,
    STEPS,
    GoneStore,
    adds_to,
    assert_as_plain,
    assert_raises,
    block,
    fsdp2,
    local,
    rank,
    ranks_mesh,
    square_sum,
    world,
    wraps,
)
from same import assert_equal, plain
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import remat_meta as remat
from remat_meta import _plan_agreement

CHECKS = {}
check = adds_to(CHECKS)


class Wrapped(nn.Module):
    """Calls `module` by `wrap`."""

    def __init__(self, module, wrap):
        super().__init__()
        self.module = module
        self.call = wrap(module)

    def forward(self, *args):
        return self.call(*args)


def fsdp1(module, strategy):
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    return FullyShardedDataParallel(
        module, sharding_strategy=getattr(ShardingStrategy, strategy), device_id=torch.device("cpu"), use_orig_params=True
    )


def state_of(module):
    """Weights, their gradients and buffers, of this rank."""
    tensors = []
    for parameter in module.parameters():
        tensors.append(local(parameter).detach().clone())
        if parameter.grad is not None:
            tensors.append(local(parameter.grad).clone())
    return tensors + [buffer.clone() for buffer in module.buffers()]


def train(module, call=None, loss=square_sum, rounds=STEPS, micro_steps=1, syncs=None):
    """Losses and state of some steps; `syncs(module, is_last)` is a context of a micro step."""
    torch.manual_seed(rank())
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    tensors = []
    for _ in range(rounds):
        for i in range(micro_steps):
            with syncs(module, i == micro_steps - 1) if syncs else contextlib.nullcontext():
                value = loss((call or module)(torch.rand(3, 4)))
                value.backward()
            tensors.append(value.detach())
        tensors += state_of(module)
        optimizer.step()
        optimizer.zero_grad()
    return tensors


def assert_trained_as_plain(program, engines=ENGINES, all_gather=None, reduce_scatter=None, all_reduce=0):
    """`program(wrap)` trains some steps, in each of which there are so many collectives. What gloo does is not counted: it
    sums where the sum is to be scattered, and may tell of what it has done when the profile has ended."""
    wanted = assert_as_plain(program, wraps(engines, (None,)), "c10d::")
    if all_gather:
        counts = [wanted[name] for name in ("_allgather_base_", "_reduce_scatter_base_", "allreduce_")]
        assert counts == [STEPS * count for count in (all_gather, reduce_scatter, all_reduce)], f"plain: {wanted}"


# FSDP2.


def inside(wrap, blocks=3, shard=fsdp2, **options):
    """Blocks that are sharded, each with a region in it."""
    return shard(nn.Sequential(*(shard(Wrapped(block(), wrap), **options) for _ in range(blocks))), **options)


def around(wrap, blocks=3, shard=fsdp2, **options):
    """Blocks that are sharded, each in a region."""
    return shard(nn.Sequential(*(Wrapped(shard(block(), **options), wrap) for _ in range(blocks))), **options)


def around_all(wrap, blocks=3, shard=fsdp2, **options):
    """One region round all of them."""
    return Wrapped(shard(nn.Sequential(*(shard(block(), **options) for _ in range(blocks))), **options), wrap)


PLACES = (inside, around, around_all)


@check
def three_blocks():
    for place in PLACES:
        assert_trained_as_plain(lambda wrap, place=place: train(place(wrap)), all_gather=6, reduce_scatter=3)


@check
def three_blocks_that_stay_gathered():
    for place in (inside, around_all):
        program = lambda wrap, place=place: train(place(wrap, reshard_after_forward=False))  # noqa: E731
        assert_trained_as_plain(program, all_gather=3, reduce_scatter=3)


@contextlib.contextmanager
def syncs_at_the_end(module, is_last):
    sharded = module if hasattr(module, "set_requires_gradient_sync") else module.module
    sharded.set_requires_gradient_sync(is_last)
    yield


@check
def two_accumulated_steps():
    for place in PLACES:
        program = lambda wrap, place=place: train(place(wrap), micro_steps=2, syncs=syncs_at_the_end)  # noqa: E731
        assert_trained_as_plain(program, all_gather=12, reduce_scatter=3)


def low_precision(output_dtype=torch.float32):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=output_dtype)


@check
def mixed_precision():
    for place, output_dtype in ((inside, torch.float32), (around, torch.float32), (around, None), (around_all, None)):
        program = lambda wrap, place=place, to=output_dtype: train(place(wrap, mp_policy=low_precision(to)))  # noqa: E731
        assert_trained_as_plain(program, all_gather=6, reduce_scatter=3)


class Headed(nn.Module):
    """A weight of the root before the blocks."""

    def __init__(self, blocks):
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        x = self.head(x)
        for one in self.blocks:
            x = one(x)
        return x


def headed(wrap, is_around, prefetch=False, **options):
    torch.manual_seed(1)
    blocks = [fsdp2(block() if is_around else Wrapped(block(), wrap), **options) for _ in range(3)]
    if prefetch:
        for one, other in itertools.pairwise(blocks):
            one.set_modules_to_forward_prefetch([other])
            other.set_modules_to_backward_prefetch([one])
    return fsdp2(Headed([Wrapped(one, wrap) if is_around else one for one in blocks]), **options)


@check
def prefetched():
    for is_around in (False, True):
        program = lambda wrap, is_around=is_around: train(headed(wrap, is_around, prefetch=True))  # noqa: E731
        assert_trained_as_plain(program, all_gather=7, reduce_scatter=4)


@check
def experts_that_are_sharded_in_regions():
    def experts(wrap):
        class Layer(nn.Module):
            def __init__(self):
                super().__init__()
                self.gate = nn.Linear(4, 2)
                self.experts = nn.ModuleList(fsdp2(block()) for _ in range(2))

            def forward(self, x):
                scores = self.gate(x).softmax(-1)
                return sum(scores[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))

        torch.manual_seed(1)
        return fsdp2(Headed([fsdp2(Wrapped(Layer(), wrap)) for _ in range(2)]))

    assert_trained_as_plain(lambda wrap: train(experts(wrap)), all_gather=13, reduce_scatter=7)


@check
def a_block_that_is_called_twice():
    def program(wrap, is_around):
        module = fsdp2(nn.Sequential(fsdp2(block()), nn.Tanh()))
        if is_around:
            return train(module, wrap(lambda x: module[0](module[0](x.sin())).exp()))
        call = wrap(module[0])
        return train(module, lambda x: call(call(x.sin())).exp())

    for is_around in (False, True):
        assert_trained_as_plain(lambda wrap, is_around=is_around: program(wrap, is_around))


@check
def modules_that_are_gathered_together():
    def program(wrap):
        module = block()
        fsdp2([module[0], module[2]])
        fsdp2(module)
        return train(module, wrap(module))

    assert_trained_as_plain(program)


@check
def frozen_weights():
    def program(wrap, is_around):
        blocks = [block() for _ in range(3)]
        for parameter in (*blocks[0].parameters(), *blocks[1][0].parameters()):
            parameter.requires_grad_(False)
        if is_around:
            return train(fsdp2(nn.Sequential(*(Wrapped(fsdp2(one), wrap) for one in blocks))))
        return train(fsdp2(nn.Sequential(*(fsdp2(Wrapped(one, wrap)) for one in blocks))))

    for is_around in (False, True):
        assert_trained_as_plain(lambda wrap, is_around=is_around: program(wrap, is_around))


@check
def replicas_of_shards():
    for is_around in (False, True):
        program = lambda wrap, is_around=is_around: train(headed(wrap, is_around, mesh=ranks_mesh(2, 2)))  # noqa: E731
        assert_trained_as_plain(program, all_gather=7, reduce_scatter=4, all_reduce=4)


# What ends in another way.


class WithSide(nn.Module):
    """Hands out what is in the middle of it."""

    def __init__(self, wrap):
        super().__init__()
        self.first, self.second = block(), block()
        self.call = wrap(self.both)

    def both(self, x):
        middle = self.first(x).tanh()
        return middle, self.second(middle)

    def forward(self, x):
        self.side, out = self.call(x)
        return out


@check
def a_loss_that_leaves_by_a_side_output_too():
    def program(wrap, is_around):
        module = fsdp2(WithSide(plain if is_around else wrap))
        model = nn.Sequential(Wrapped(module, wrap) if is_around else module, nn.Tanh())
        fsdp2(model)
        return train(model, loss=lambda y: square_sum(y) + module.side.sin().sum())

    for is_around in (False, True):
        assert_trained_as_plain(lambda wrap, is_around=is_around: program(wrap, is_around))


@check
def a_loss_that_leaves_by_a_side_output_alone():
    """FSDP does not gather then: autograd raises without remat. So the module that is not sharded is the oracle."""

    def program(wrap, shard):
        inner = WithSide(wrap)
        if shard:
            fsdp2(inner)
        model = nn.Sequential(inner, nn.Tanh())
        if shard:
            fsdp2(model)
        tensors = []
        x = torch.full((3, 4), 0.5)
        for _ in range(STEPS):
            model(x)
            inner.side.sin().sum().backward()
            for parameter in inner.first.parameters():
                tensors.append(parameter.grad.full_tensor() if shard else parameter.grad.clone())
            model.zero_grad()
        return tensors

    expected = program(plain, shard=False)
    for engine in ENGINES:
        assert_equal(expected, program(remat.checkpoint(replay=engine), shard=True))


@check
def a_parameter_that_nobody_can_gather_is_named():
    inner = WithSide(remat.checkpoint(replay="tape"))
    model = fsdp2(nn.Sequential(fsdp2(inner), nn.Tanh()))
    model(torch.full((3, 4), 0.5))
    loss = inner.side.sum()
    del inner, model
    gc.collect()
    assert_raises(RuntimeError, loss.backward, "parameter 0.first.", "Keep the module")


@check
def nested_regions():
    def program(wrap):
        model = fsdp2(nn.Sequential(*(Wrapped(Wrapped(fsdp2(block()), wrap), wrap) for _ in range(2))))
        return train(Wrapped(model, wrap))

    assert_trained_as_plain(program, all_gather=4, reduce_scatter=2)


@check
def regions_in_a_checkpoint_of_torch():
    """Its replay calls the modules while FSDP is before a backward."""

    def program(wrap, **options):
        blocks = [fsdp2(block(), **options) for _ in range(2)]
        first, second = map(wrap, blocks)
        module = fsdp2(nn.Sequential(*blocks))
        call = lambda x: second(first(x.sin()).sin()).sin()  # noqa: E731
        return train(module, lambda x: torch.utils.checkpoint.checkpoint(call, x, use_reentrant=False))

    for options in ({}, {"mp_policy": low_precision()}):
        assert_trained_as_plain(lambda wrap, options=options: program(wrap, **options))


@check
def a_retained_graph():
    def program(wrap, place):
        module = place(wrap, blocks=2)
        torch.manual_seed(rank())
        tensors = []
        for _ in range(STEPS):
            loss = square_sum(module(torch.rand(3, 4)))
            loss.backward(retain_graph=True)
            loss.backward()
            tensors += state_of(module)
        return tensors

    for place in (inside, around_all):
        assert_trained_as_plain(lambda wrap, place=place: program(wrap, place))


# Plans that ranks agree on.


def _slow(x: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return x.sin()


slow = torch.library.custom_op("sharded_checks::slow", _slow, mutates_args=())
slow.register_autograd(
    lambda context, gradient: (gradient * context.saved_tensors[0].cos(), None),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


class Slow(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.first, self.second, self.seconds = nn.Linear(64, 256), nn.Linear(256, 64), seconds

    def forward(self, x):
        return x + self.second(slow(self.first(x), self.seconds)).sin()


def planned(budget, is_function=False, mesh=None):
    """A model, and what calls it within the budget. Each rank has other slow ops, so by itself it would keep other results."""
    torch.manual_seed(1)
    blocks = (fsdp2(Slow(0.02 * (i % 2 == rank() % 2)), mesh) for i in range(4))
    model = fsdp2(nn.Sequential(*blocks), mesh)
    return model, remat.auto_checkpoint((lambda x: model(x)) if is_function else model, budget, name="planned")


def planned_steps(model, call, rounds=6, rows=128):
    torch.manual_seed(rank())
    tensors = []
    for _ in range(rounds):
        square_sum(call(torch.rand(rows, 64))).backward()
        tensors += state_of(model)
        model.zero_grad()
    return tensors


def on_all_ranks(value):
    values = [None] * world()
    dist.all_gather_object(values, value)
    return values


def has_plan(call):
    return remat._auto_checkpoint._find(call).memory_plan() is not None


def assert_is_agreed(call):
    """On a plan, or on that there is none."""
    cuts = remat.memory_plan(call).cuts if has_plan(call) else None
    first, *others = on_all_ranks(cuts and (cuts.positions, cuts.groups, cuts.keep))
    assert all(other == first for other in others), (first, others)


@check
def ranks_run_by_one_plan():
    torch.manual_seed(1)
    blocks = [fsdp2(Slow(0)) for _ in range(4)]
    plain_model = fsdp2(nn.Sequential(*blocks))
    expected = planned_steps(plain_model, plain_model)
    for budget, is_function in (("95%", False), ("95%", True), ("1900kB", False), ("2MB", False), ("3MB", False)):
        model, call = planned(budget, is_function)
        assert_equal(expected, planned_steps(model, call))
        assert_is_agreed(call)


@check
def ranks_whose_batches_differ_run_by_one_plan():
    model, call = planned("95%")
    planned_steps(model, call, rows=96 + 32 * rank())
    assert_is_agreed(call)


@check
def a_budget_that_is_too_small_raises_on_all_ranks():
    model, call = planned("20%")
    texts = on_all_ranks(assert_raises(ValueError, lambda: planned_steps(model, call)))
    assert len(set(texts)) == 1
    assert "memory_budget: expected" in texts[0], texts


@check
def a_measured_step_that_does_not_count_on_one_rank_counts_as_on_the_first():
    for loser in range(2):
        _, call = planned("95%")
        for round in range(6):
            square_sum(call(torch.rand(128, 64))).backward()
            if rank() == loser and round == 2:  # as if a profiler had been started
                remat._C._give_up_measured_step()
            assert len(set(on_all_ranks(has_plan(call)))) == 1, round  # in which one depends on what was measured
        assert_is_agreed(call)


@check
def a_rank_that_is_late_is_waited_for():
    """The first one comes when the others have said that they wait for it."""
    agreement = _plan_agreement.PlanAgreement("model", "80%", fsdp2(nn.Linear(4, 4)))
    store = dist.distributed_c10d._get_default_store()
    lines = []

    def showwarning(message, *_args):
        lines.append(str(message))
        store.set(f"waits/{rank()}", "")

    patience, _plan_agreement._PATIENCE_S = _plan_agreement._PATIENCE_S, 0.1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = showwarning
            agreement.begin_step()
            if rank() == 0:
                store.wait([f"waits/{other}" for other in range(1, world())])
            assert agreement.agree(f"plan of {rank()}") == "plan of 0"
    finally:
        _plan_agreement._PATIENCE_S = patience
    assert len(lines) == (rank() != 0), lines
    assert all("'model': expected of rank 0 what it has decided before step 1" in line for line in lines), lines


@check
def a_rank_that_does_not_come_raises():
    agreement = _plan_agreement.PlanAgreement("model", "80%", fsdp2(nn.Linear(4, 4)))
    _plan_agreement._current._store.set_timeout(datetime.timedelta(seconds=0.3))
    agreement.begin_step()
    if rank():
        words = "'model': expected of rank 0 what it has decided before step 1, got none within"
        assert_raises(TimeoutError, lambda: agreement.agree(""), words)


@check
def ranks_that_gather_apart_do_not_wait_for_each_other():
    """Two pairs, as of two stages: the first one begins when the other has ended."""
    shards = ranks_mesh(2, 2)["shard"]
    if rank() < 2:
        dist.barrier()
    model, call = planned("95%", mesh=shards)
    planned_steps(model, call)
    if rank() >= 2:
        dist.barrier()
    cuts = on_all_ranks(remat.memory_plan(call).cuts.keep)
    assert cuts[0] == cuts[1], cuts
    assert cuts[2] == cuts[3], cuts


@check
def a_store_that_is_gone_leaves_each_rank_its_own_plan():
    agreement = _plan_agreement.PlanAgreement("model", "80%", fsdp2(nn.Linear(4, 4)))
    _plan_agreement._current._store = GoneStore()
    assert agreement.agree("plan") == "plan"


@check
def models_that_are_not_sharded_ask_nobody():
    if rank():
        model = remat.auto_checkpoint(nn.Sequential(*(nn.Linear(16, 16) for _ in range(4))), "90%")
        for _ in range(5):
            model(torch.rand(64, 16)).sum().backward()


def is_whole(module):
    return any(not hasattr(parameter, "to_local") for parameter in module.parameters())


@check
def a_module_is_sharded_after_the_step_and_without_gradients():
    for place, engine in itertools.product(PLACES, ENGINES):
        outputs = []
        for wrap in (plain, remat.checkpoint(replay=engine)):
            module = place(wrap)
            train(module)
            assert not is_whole(module)
            with torch.no_grad():
                outputs.append(module(torch.ones(3, 4)))
            outputs += train(module, rounds=1)  # as if there were no regions
        half = len(outputs) // 2
        assert_equal(outputs[:half], outputs[half:])


class Thrown(Exception):
    pass


@check
def an_exception_in_a_region_leaves_the_module_as_it_would_be():
    """FSDP itself does not take its root's state back after an exception; with a child that throws it goes on."""

    def program(wrap):
        child = fsdp2(block())
        throws = [True]

        def call(x):
            y = child(x)
            if throws[0]:
                raise Thrown
            return y

        region = wrap(call)
        tensors = []
        for _ in range(STEPS):
            throws[0] = True
            try:
                region(torch.ones(3, 4))
            except Thrown:
                throws[0] = False
            square_sum(region(torch.ones(3, 4))).backward()
            tensors += state_of(child)
        return tensors

    assert_trained_as_plain(program, engines=("function", "auto"))


@check
def what_a_user_frees_raises():
    def run(engine):
        sharded = fsdp2(block())
        mine = torch.rand(4, 4)

        def fn(x):
            y = sharded(x) @ mine
            mine.untyped_storage().resize_(0)
            return y

        square_sum(remat.checkpoint(replay=engine)(fn)(torch.rand(3, 4))).backward()

    for engine in ENGINES:
        assert_raises(RuntimeError, lambda engine=engine: run(engine), "to keep its size")


# FSDP1.


@check
def a_checkpoint_around_an_fsdp1_module_raises():
    for determinism, strategy in itertools.product(("metadata", "none"), ("FULL_SHARD", "SHARD_GRAD_OP")):
        sharded = fsdp1(block(), strategy)
        wrap = remat.checkpoint(determinism_check=determinism)
        assert_raises(RuntimeError, lambda sharded=sharded, wrap=wrap: train(sharded, wrap(sharded)), "inside the sharded module")


@check
def a_checkpoint_inside_an_fsdp1_module():
    assert_trained_as_plain(lambda wrap: train(fsdp1(Wrapped(block(), wrap), "FULL_SHARD")))


# DDP.


class Normed(nn.Module):
    """With batch norm, and a weight that is used by `uses_all` only."""

    def __init__(self, uses_all):
        super().__init__()
        torch.manual_seed(5)
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)
        self.unused = nn.Linear(4, 4)
        self.uses_all = uses_all

    def forward(self, x):
        y = self.last(self.norm(self.first(x)).tanh())
        return self.unused(y) if self.uses_all else y


@contextlib.contextmanager
def no_sync_before_the_last(module, is_last):
    ddp = module if isinstance(module, DistributedDataParallel) else module.module
    with contextlib.nullcontext() if is_last else ddp.no_sync():
        yield


def compressed(ddp):
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    ddp.register_comm_hook(None, fp16_compress_hook)


def replicated(wrap, is_around, prepare=None, uses_all=True, **options):
    module = Normed(uses_all)
    ddp = DistributedDataParallel(module if is_around else Wrapped(module, wrap), **options)
    if prepare:
        prepare(ddp)
    return Wrapped(ddp, wrap) if is_around else ddp


def assert_replicated(training=None, **which):
    for is_around in (False, True):
        assert_trained_as_plain(lambda wrap, a=is_around: train(replicated(wrap, a, **which), **training or {}))


@check
def ddp():
    assert_replicated()


@check
def ddp_that_finds_unused_parameters():
    assert_replicated(uses_all=False, find_unused_parameters=True)


@check
def ddp_of_a_static_graph():
    assert_replicated(uses_all=False, static_graph=True)


@check
def ddp_with_gradients_in_buckets():
    assert_replicated(gradient_as_bucket_view=True)


@check
def ddp_that_accumulates():
    assert_replicated({"micro_steps": 2, "syncs": no_sync_before_the_last})


@check
def ddp_that_compresses():
    assert_replicated(prepare=compressed)


@check
def ddp_in_the_middle_of_a_region():
    for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):

        def program(wrap, options=options):
            ddp = DistributedDataParallel(Normed(uses_all=True), **options)
            return train(ddp, wrap(lambda x: ddp(x.sin()).exp().cos()))

        assert_trained_as_plain(program)


@check
def ddp_that_is_not_to_reduce_when_the_replay_runs():
    """Whether a backward reduces is decided in its forward."""

    def program(wrap):
        torch.manual_seed(rank())
        ddp = DistributedDataParallel(Normed(uses_all=True))
        region = wrap(lambda x: ddp(x.sin()).exp().cos())
        tensors = []
        for _ in range(STEPS):
            with ddp.no_sync():
                first = square_sum(region(torch.rand(3, 4)))
            first.backward()
            tensors += state_of(ddp)
            second = square_sum(region(torch.rand(3, 4)))
            with ddp.no_sync():
                second.backward()
            tensors += state_of(ddp)
            ddp.zero_grad()
        return tensors

    assert_trained_as_plain(program)


@check
def ddp_without_gradients():
    def program(wrap):
        model = replicated(wrap, is_around=True)
        tensors = train(model)
        with torch.no_grad():
            tensors.append(model(torch.ones(3, 4)))
        return tensors + train(model)

    assert_trained_as_plain(program)


NEED_FOUR_RANKS = ("replicas_of_shards", "ranks_that_gather_apart_do_not_wait_for_each_other")
ON_FOUR_RANKS = (*NEED_FOUR_RANKS, "experts_that_are_sharded_in_regions", "ddp", "ranks_run_by_one_plan")
ON_TWO_RANKS = tuple(name for name in CHECKS if name not in NEED_FOUR_RANKS)
