# SPDX-License-Identifier: BSD-3-Clause

"""Checks that test_sharded.py runs on each rank: modules wrapped by FSDP1 or FSDP2, with regions in and around them. Each check
compares with the same module without remat, bit by bit, and counts the collectives that run."""

import contextlib
import gc
import itertools

import torch
import torch.utils.checkpoint
from on_ranks import ENGINES, STEPS, adds_to, assert_raises, block, rank, ranks_mesh, square_sum
from same import assert_equal, plain
from torch import nn
from training_steps import Wrapped, assert_trained_as_plain, fsdp2, state_of, train

import remat_meta as remat

CHECKS = {}
check = adds_to(CHECKS)


# FSDP2


def inside(wrap, blocks=3, shard=fsdp2, **options):
    """Sharded blocks, each with a region inside."""
    return shard(nn.Sequential(*(shard(Wrapped(block(), wrap), **options) for _ in range(blocks))), **options)


def around(wrap, blocks=3, shard=fsdp2, **options):
    """Sharded blocks, each inside a region."""
    return shard(nn.Sequential(*(Wrapped(shard(block(), **options), wrap) for _ in range(blocks))), **options)


def around_all(wrap, blocks=3, shard=fsdp2, **options):
    """Sharded blocks inside one region."""
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
    """A root module with a weight of its own before the blocks."""

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


# Other ways for a step to end


class WithSide(nn.Module):
    """Has an intermediate tensor of the last forward as an attribute."""

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
    """Without remat autograd raises, because FSDP does not gather here: the expected values are of an unsharded module."""

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
    """The replay of torch's checkpoint calls the modules when FSDP is in its state PRE_BACKWARD."""

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
            outputs += train(module, rounds=1)  # The next step is as without regions, too.
        half = len(outputs) // 2
        assert_equal(outputs[:half], outputs[half:])


class Thrown(Exception):
    pass


@check
def an_exception_in_a_region_leaves_the_module_as_it_would_be():
    """Only a child of the root throws. After an exception of the root itself FSDP does not work, with or without regions."""

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


# FSDP1


def fsdp1(module, strategy):
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    return FullyShardedDataParallel(
        module, sharding_strategy=getattr(ShardingStrategy, strategy), device_id=torch.device("cpu"), use_orig_params=True
    )


@check
def a_checkpoint_around_an_fsdp1_module_raises():
    for determinism, strategy in itertools.product(("metadata", "none"), ("FULL_SHARD", "SHARD_GRAD_OP")):
        sharded = fsdp1(block(), strategy)
        wrap = remat.checkpoint(determinism_check=determinism)
        assert_raises(RuntimeError, lambda sharded=sharded, wrap=wrap: train(sharded, wrap(sharded)), "inside the sharded module")


@check
def a_checkpoint_inside_an_fsdp1_module():
    assert_trained_as_plain(lambda wrap: train(fsdp1(Wrapped(block(), wrap), "FULL_SHARD")))


NEED_FOUR_RANKS = ("replicas_of_shards",)
ON_RANKS = {
    2: tuple(name for name in CHECKS if name not in NEED_FOUR_RANKS),
    4: (*NEED_FOUR_RANKS, "experts_that_are_sharded_in_regions"),
}
