# SPDX-License-Identifier: BSD-3-Clause

"""Trains a small model twice, plainly and with regions, and compares every bit of both runs."""

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy
import torch
import torch.utils.checkpoint
from same import bits

import remat_meta as remat
from remat_meta._C import live_region_count

SAVE = remat.CheckpointPolicy.SAVE


@dataclass(frozen=True)
class Case:
    """A model with random weights, and what the harness must know about it.

    `batch` makes the argument of `loss(model, batch)`. `blocks`, `saved`: which modules become regions, and which modules in them
    SAVE calls; of nested ones the outermost counts. `backbone`: the module that runs the blocks, itself called with tensors.
    `enable`: the library's own switch for checkpointing. `region`: wrap(forward, name, **options)."""

    model: Callable
    batch: Callable
    loss: Callable
    blocks: Callable
    saved: Callable
    backbone: Callable
    enable: Callable
    region: Callable


def region(forward, name, **options):
    return remat.checkpoint(region_name=name, **options)(forward)


def any_output_region(forward, name, **options):
    """A region for blocks that return None among their tensors."""
    return remat.checkpoint(region_name=name, _any_output=True, **options)(forward)


def call_stock_checkpoint(blocks):
    """For libraries without a switch: calls torch's checkpoint around each block, as their users do."""

    def enable(model):
        def wrap(forward, name):
            return functools.partial(torch.utils.checkpoint.checkpoint, forward, use_reentrant=False)

        assert wrap_forwards(model, blocks, wrap) > 0

    return enable


def outermost(root, chosen, prefix=""):
    """Returns (name, module) of the modules below `root` that `chosen` takes, none inside another."""
    for name, child in root.named_children():
        path = f"{prefix}{name}"
        if chosen(child):
            yield path, child
        else:
            yield from outermost(child, chosen, f"{path}.")


def wrap_forwards(root, chosen, wrap):
    """Replaces each chosen module's forward by wrap(forward, name); returns how many."""
    found = list(outermost(root, chosen))
    for name, module in found:
        module.forward = wrap(module.forward, name)
    return len(found)


def drop_in(case, model, stack):
    stack.enter_context(remat.patch_torch_checkpoint())
    case.enable(model)


def save_in_blocks(case, model):
    """Puts a SAVE call around each chosen module inside the blocks."""
    saved = 0
    for _, block in outermost(model, case.blocks):
        saved += wrap_forwards(block, case.saved, lambda forward, name: remat.native_op(forward, name, SAVE))
    assert saved > 0


def by_hand(case, model, stack):
    """Puts a region around each block, with SAVE calls inside."""
    save_in_blocks(case, model)
    assert wrap_forwards(model, case.blocks, case.region) > 1


def around_backbone(case, model, **options):
    whole = case.backbone(model)
    whole.forward = remat.checkpoint(region_name="backbone", **options)(whole.forward)


def nested(case, model, stack):
    """Puts a region around the backbone, around those of by_hand()."""
    by_hand(case, model, stack)
    around_backbone(case, model)


def nested_drop_in(case, model, stack):
    """Puts a region around the library's own checkpoints."""
    drop_in(case, model, stack)
    around_backbone(case, model)


def taped(case, model, stack):
    """Puts a region with a tape around each block, whose function no backward calls again; raises if there is no tape."""

    def wrap(forward, name):
        def once(*args, **keywords):
            assert not remat.is_recomputing()
            return forward(*args, **keywords)

        return case.region(once, name, replay="tape")

    save_in_blocks(case, model)
    assert wrap_forwards(model, case.blocks, wrap) > 1


def auto(case, model, stack):
    """Puts regions with replay="auto" around each block and around the backbone."""
    save_in_blocks(case, model)
    assert wrap_forwards(model, case.blocks, functools.partial(case.region, replay="auto")) > 1
    around_backbone(case, model, replay="auto")


def plain(case, model, stack):
    pass


MODES = {
    "drop-in": drop_in,
    "by hand": by_hand,
    "nested": nested,
    "nested drop-in": nested_drop_in,
    "tape": taped,
    "auto": auto,
}
VARIANTS = {"float32": {}, "bf16 autocast": {"autocast": True}, "two microbatches": {"microbatches": 2}}


def train(case, mode, autocast=False, microbatches=1):
    """Runs two optimizer steps; returns all tensors that they leave, by name."""
    torch.manual_seed(11)
    numpy.random.seed(11)
    model = case.model().train()
    batches = [case.batch() for _ in range(2 * microbatches)]
    trace = {}
    with contextlib.ExitStack() as stack:
        mode(case, model, stack)
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
        for step in range(2):
            for micro in range(microbatches):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    regions = live_region_count()
                    loss = case.loss(model, batches[step * microbatches + micro])
                    assert (live_region_count() > regions) == (mode is not plain)
                trace[f"step {step}, loss {micro}"] = loss.detach().clone()
                trace[f"step {step}, generator after forward {micro}"] = torch.get_rng_state()
                loss.backward()
                trace[f"step {step}, generator after backward {micro}"] = torch.get_rng_state()
            for name, parameter in model.named_parameters():
                gradient = parameter.grad
                trace[f"step {step}, gradient of {name}"] = None if gradient is None else gradient.clone()
            optimizer.step()
            optimizer.zero_grad()
            state = [*model.named_parameters(), *model.named_buffers()]
            trace |= {f"step {step}, {name}": tensor.detach().clone() for name, tensor in state}
    return trace


def first_difference(expected, got):
    """Returns the name of the first value that differs in a bit, or None if all are equal."""
    if list(expected) != list(got):
        return f"names: {set(expected) ^ set(got) or 'their order'}"
    for name, want in expected.items():
        have = got[name]
        if (want is None) != (have is None):
            return f"{name}: {'nothing' if have is None else 'a tensor'}"
        if want is None:
            continue
        if want.dtype != have.dtype or want.shape != have.shape:
            return f"{name}: {have.dtype} {tuple(have.shape)}"
        if not torch.equal(bits(want), bits(have)):
            return f"{name}: {int((bits(want) != bits(have)).sum())} of {bits(want).numel()} bytes"
    return None


@functools.cache
def plain_trace(case, variant):
    """Returns the values of a plain run, after checking that a second run has the same bits."""
    trace = train(case, plain, **VARIANTS[variant])
    assert first_difference(trace, train(case, plain, **VARIANTS[variant])) is None
    return trace


def assert_bitwise_plain(case, variant, mode):
    got = train(case, MODES[mode], **VARIANTS[variant])
    difference = first_difference(plain_trace(case, variant), got)
    assert difference is None, difference
