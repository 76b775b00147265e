# SPDX-License-Identifier: BSD-3-Clause

"""Test support: checks that a step with checkpointing is bitwise the step without."""

import copy
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from . import _C
from ._torch_checkpoint import torch_checkpoint

__all__ = ["assert_bitwise_equal", "checkpoint_blocks"]

_WHERE = "[assert_bitwise_equal]"


def checkpoint_blocks(model: torch.nn.Module) -> None:
    """Makes a region of each element of the outermost ModuleLists and Sequentials of `model`, or of `model` if it has none.

    Replaces their `forward` attributes; names in state_dict() do not change. An element that has no forward, such as an
    inner ModuleList, makes no region.
    """
    blocks = list(_blocks(model)) or [model]
    for block in blocks:
        block.forward = _region(block.forward)  # type: ignore[method-assign]


def _blocks(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    for child in module.children():
        if isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential)):
            yield from child
        else:
            yield from _blocks(child)


def _region(forward: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **keywords: torch_checkpoint(forward, *args, **keywords)


def assert_bitwise_equal(
    model: torch.nn.Module,
    batch: Any,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    wrap: Callable[[torch.nn.Module], Callable[..., Any] | None] | None = None,
) -> None:
    """Runs forward and backward of `model` plainly and with regions, and compares every bit.

    Compares outputs, the loss, gradients of parameters and of tensors in the batch, parameters, buffers, and the default
    generators after forward and after backward. Both runs begin with equal weights, buffers and generators, each on a copy
    of model and batch (one at a time, so memory for a second model is needed). Your model, batch
    and generators do not change. Use it in train mode, as you train.

    batch: a mapping is passed as keyword arguments, a tuple or list as positional arguments, anything else as the one argument.
    loss: maps the output to a scalar. Default: the output's `loss`, else the sum of squares of its tensors that
        require grad.
    wrap: takes the copy, puts regions into it and returns what to call in its place (None: the copy itself).
        Default: checkpoint_blocks().

    Raises AssertionError that names the first difference, or says that no region was left for backward. If two plain
    runs differ too, it says so, since no checkpoint can be compared then. Errors of remat and of the model reach you.
    """
    states = _generator_states()
    wrap = wrap or checkpoint_blocks
    try:
        plain = _run(model, batch, loss, None, states)
        got = _run(model, batch, loss, wrap, states)
        difference = _first_difference(plain, got)
        if difference is None:
            return
        noise = _first_difference(plain, _run(model, batch, loss, None, states))
    finally:
        _set_generators(states)
    if noise is not None:
        raise AssertionError(
            f"{_WHERE} {noise[0]}: expected equal bits of two plain runs, got {noise[1]}. The model is not "
            "deterministic without remat: see torch.use_deterministic_algorithms()."
        )
    raise AssertionError(
        f"{_WHERE} {difference[0]}: expected the bits of the plain run, got {difference[1]}. Put less into "
        "regions until the one that differs is found."
    )


def _run(
    model: torch.nn.Module,
    batch: Any,
    loss: Callable[[Any], torch.Tensor] | None,
    wrap: Callable[[torch.nn.Module], Callable[..., Any] | None] | None,
    states: dict[str, Any],
) -> dict[str, Any]:
    """Returns the state that one step leaves, by name, in the order in which a difference is best reported."""
    model = copy.deepcopy(model)
    model.zero_grad(set_to_none=True)
    batch = pytree.tree_map_only(torch.Tensor, _own_leaf, batch)
    call = (wrap(model) if wrap else None) or model
    _set_generators(states)
    regions = _C.live_region_count()
    output = _call(call, batch)
    value = (loss or _default_loss)(output)
    if wrap and _C.live_region_count() == regions:
        raise AssertionError(
            f"{_WHERE} wrap: expected a forward that leaves regions for backward, got none. Call checkpoint() in "
            "what it returns, around ops that save tensors, with grad mode on and something that requires grad."
        )
    left = {f"output{path}": leaf.detach().clone() for path, leaf in _tensors(output)}
    left["loss"] = value.detach().clone()
    left |= {f"{name} after forward": state for name, state in _torch_states(_generator_states())}
    value.backward()
    left |= {f"gradient of {name!r}": parameter.grad for name, parameter in model.named_parameters()}
    left |= {f"gradient of batch{path}": leaf.grad for path, leaf in _tensors(batch) if leaf.is_leaf}
    left |= {f"parameter {name!r}": parameter.detach() for name, parameter in model.named_parameters()}
    left |= {f"buffer {name!r}": buffer for name, buffer in model.named_buffers()}
    left |= {f"{name} after backward": state for name, state in _torch_states(_generator_states())}
    return left


def _own_leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _call(function: Callable[..., Any], batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return function(**batch)
    if isinstance(batch, (tuple, list)):
        return function(*batch)
    return function(batch)


def _default_loss(output: Any) -> torch.Tensor:
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(found, torch.Tensor):
        return found
    leaves = [leaf for _, leaf in _tensors(output) if leaf.requires_grad]
    if not leaves:
        raise ValueError(f"{_WHERE} output: expected tensors that require grad, got none. Pass loss=, or look for no_grad.")
    return sum((leaf.abs().pow(2).sum() for leaf in leaves), torch.zeros(()))


def _tensors(value: Any) -> list[tuple[str, torch.Tensor]]:
    """Returns (path, tensor) for each tensor of a nesting; a path reads like `[0]['key']`."""
    leaves = pytree.tree_flatten_with_path(value)[0]
    return [(pytree.keystr(path), leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]


def _generator_states() -> dict[str, Any]:
    states: dict[str, Any] = {
        "the CPU generator": torch.get_rng_state(),
        "random": random.getstate(),
    }
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states |= {f"the generator of cuda:{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def _torch_states(states: dict[str, Any]) -> list[tuple[str, torch.Tensor]]:
    return [(name, state) for name, state in states.items() if isinstance(state, torch.Tensor)]


def _set_generators(states: dict[str, Any]) -> None:
    for name, state in states.items():
        if name == "random":
            random.setstate(state)
        elif name == "numpy":
            sys.modules["numpy"].random.set_state(state)
        elif name == "the CPU generator":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, name.removeprefix("the generator of "))


def _first_difference(expected: dict[str, Any], got: dict[str, Any]) -> tuple[str, str] | None:
    """Returns (name, description) of the first difference."""
    for name, want in expected.items():
        if name not in got:
            return name, "nothing"
        text = _difference(want, got[name])
        if text is not None:
            return name, text
    more = [name for name in got if name not in expected]
    return (more[0], "one that the plain run does not have") if more else None


def _difference(want: torch.Tensor | None, have: torch.Tensor | None) -> str | None:
    if want is None or have is None:
        return None if want is have else ("none" if have is None else "one, where the plain run has none")
    if (want.dtype, want.shape, want.device) != (have.dtype, have.shape, have.device):
        return f"{have.dtype} {list(have.shape)} on {have.device} for {want.dtype} {list(want.shape)} on {want.device}"
    if want.layout is not torch.strided:
        want, have = want.to_dense(), have.to_dense()
    differs = (_bytes(want) != _bytes(have)).any(-1)
    if not differs.any():
        return None
    count, first = int(differs.sum()), int(differs.nonzero()[0])
    place = [int(i) for i in torch.unravel_index(torch.tensor(first), want.shape)] if want.dim() else []
    before, after = want.reshape(-1)[first].item(), have.reshape(-1)[first].item()
    return f"{count} of {want.numel()} elements that differ, at {place} {after!r} for {before!r}"


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Returns one row of bytes per element."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1, 1)
    return flat.view(torch.uint8)
