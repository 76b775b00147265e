# SPDX-License-Identifier: BSD-3-Clause

"""Bitwise comparison of a checkpointed run with a plain one."""

import torch

DEVICE = torch.empty(0).device.type  # device of tensors that name none


def generator_of(seed):
    """Returns a generator on DEVICE."""
    return torch.Generator(DEVICE).manual_seed(seed)


def default_generator():
    """Returns the generator from which ops draw by default."""
    return torch.cuda.default_generators[torch.cuda.current_device()] if DEVICE == "cuda" else torch.default_generator


def plain(fn):
    return fn


def tensors_in(value):
    """Returns the tensors of a nesting, in order."""
    return [leaf for leaf in torch.utils._pytree.tree_leaves(value) if torch.is_tensor(leaf)]


def bits(tensor):
    values = tensor.detach().resolve_conj().resolve_neg().reshape(-1)
    # Not contiguous(), which does not change the stride of a single element.
    return values.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def assert_equal(expected, got):
    """Checks for the same bits, shapes and types; NaN equals NaN of the same bits."""
    expected, got = tensors_in(expected), tensors_in(got)
    assert len(expected) == len(got)
    for want, have in zip(expected, got, strict=True):
        assert want.dtype == have.dtype
        assert want.shape == have.shape
        assert torch.equal(bits(want), bits(have))


def assert_same(program, checkpointed):
    """Checks that `program(wrap)`, which returns tensors, gives the same with wrap = checkpointed as in a plain run, and that the
    generator's stream continues alike. Returns the results of the checkpointed run."""
    runs = []
    for wrap in (plain, checkpointed):
        torch.manual_seed(7)
        runs.append((program(wrap), default_generator().get_state()))
    assert_equal(runs[0], runs[1])
    return runs[1][0]
