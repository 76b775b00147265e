# SPDX-License-Identifier: BSD-3-Clause

"""Bitwise comparison of a checkpointed run with a plain one."""

import torch

DEVICE = torch.empty(0).device.type  # of tensors that name none


def generator_of(seed):
    """A generator of numbers on that device."""
    return torch.Generator(DEVICE).manual_seed(seed)


def default_generator():
    """The generator that ops without one draw from."""
    return torch.cuda.default_generators[torch.cuda.current_device()] if DEVICE == "cuda" else torch.default_generator


def plain(fn):
    return fn


def tensors_in(value):
    """The tensors of a nesting, in order."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if torch.is_tensor(leaf)]


def bits(tensor):
    values = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    # Not contiguous(), which leaves a single element the stride that it has.
    return values.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def assert_equal(expected, got):
    """Same bits, shapes and types; NaN equals NaN of the same bits."""
    expected, got = tensors_in(expected), tensors_in(got)
    assert len(expected) == len(got)
    for want, have in zip(expected, got, strict=True):
        assert want.dtype == have.dtype
        assert want.shape == have.shape
        assert torch.equal(bits(want), bits(have))


def assert_same(program, checkpointed):
    """`program(wrap)` returns tensors; with wrap = checkpointed they are those of a plain run, and
    the generator's stream goes on alike. Returns what the checkpointed run returned."""
    runs = []
    for wrap in (plain, checkpointed):
        torch.manual_seed(7)
        runs.append((program(wrap), default_generator().get_state()))
    assert_equal(runs[0], runs[1])
    return runs[1][0]
