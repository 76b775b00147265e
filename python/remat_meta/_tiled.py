# SPDX-License-Identifier: BSD-3-Clause

"""tiled(): runs a function slice by slice, each slice as a region."""

import typing

import torch
from torch.utils import _pytree

from . import _C

_P = typing.ParamSpec("_P")
_R = typing.TypeVar("_R")


def tiled(
    fn: typing.Callable[_P, _R], dim: int = 0, n: int = 8, *, region_name: str | None = None, **options: typing.Any
) -> typing.Callable[_P, _R]:
    """Runs fn on n slices of its positional tensors along dim: tiled(fn, dim, n)(*args, **kwargs).

    Use it for functions with large intermediate tensors, such as a head's logits or an MLP's inner layer. Each slice is a
    region named region_name + "[i]", which is recomputed when backward reaches it, so that one slice's memory is alive at a
    time. In a step of auto_checkpoint() slices are no regions: the plan decides what is kept of each.

        loss = remat.tiled(head_loss, 0, 8)(hidden, targets)

    Positional tensors are cut and must have the same length along dim; other arguments and all keyword arguments are passed
    whole. Results are tensors, also in tuples, lists and dicts: scalars are added, other tensors are concatenated along dim.
    n may exceed the length. Options: those of checkpoint().

    Results are not bitwise those of fn on the whole: sums over slices (added results, gradients of weights) are added in a
    different order, and matrix products of other shapes may round differently. Raises TypeError and ValueError for arguments
    that cannot be cut and results that cannot be joined.
    """
    if not callable(fn):
        raise TypeError(f"[tiled] fn: expected a function, got {_C._type_of(fn)}. Write tiled(fn, dim, n)(*args).")
    for name, value in (("dim", dim), ("n", n)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"[tiled] {name}: expected a number, got {_C._type_of(value)}.")
    _C._check_tiles(n)
    _C.checkpoint(region_name=region_name, **options)  # raises now, not at the call

    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        length = _C._tiled_length([value for value in args if isinstance(value, torch.Tensor)], dim)
        tiles = max(1, min(length, n))
        parts = []
        for i in range(tiles):
            first, size = _C._tile_range(length, tiles, i)
            tile = [value.narrow(dim, first, size) if isinstance(value, torch.Tensor) else value for value in args]
            call = fn if _C._runs_in_segments() else _C.checkpoint(region_name=f"{region_name or ''}[{i}]", **options)(fn)
            parts.append(call(*tile, **kwargs))
        return _joined(parts, length, dim)

    return run


def _joined(parts, length, dim):
    leaves, shape = _pytree.tree_flatten(parts[0])
    of_results = [leaves]
    for i, part in enumerate(parts[1:], 1):
        others, other_shape = _pytree.tree_flatten(part)
        if other_shape != shape:
            raise ValueError(
                f"[tiled] result of tile {i}: expected the same containers as of tile 0, {shape}, got {other_shape}. Return "
                "the same of each tile, dicts with their keys in one order."
            )
        of_results.append(others)
    joined = [_C._join_tiles(list(one), length, dim) for one in zip(*of_results, strict=True)]
    return _pytree.tree_unflatten(joined, shape)
