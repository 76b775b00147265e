# SPDX-License-Identifier: BSD-3-Clause

"""Functions that run slice by slice, each a region."""

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

    For what is large in between and not after it: a head's logits, an MLP's inner layer. Each slice is a region named
    region_name + "[i]", which backward runs again when it comes to it, so one slice's memory is there at a time. In a step
    of auto_checkpoint() slices are no regions: its plan says what of each is kept.

        loss = remat.tiled(head_loss, 0, 8)(hidden, targets)

    Positional tensors are cut and must be of one length along dim; other arguments, and all that a keyword names, are
    passed whole. Of what fn returns (tensors, in tuples, lists and dicts), scalars are added, other tensors are joined
    along dim. n may be more than there are elements. Options: those of checkpoint().

    Not bitwise the same as fn of the whole: sums over slices (added results, gradients of weights) are added in another
    order, and matrix products of other shapes may round otherwise. Raises TypeError and ValueError for arguments that cannot
    be cut and results that cannot be joined.
    """
    if not callable(fn):
        raise TypeError(f"[tiled] fn: expected a function, got {_C._type_of(fn)}. Write tiled(fn, dim, n)(*args).")
    for name, value in (("dim", dim), ("n", n)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"[tiled] {name}: expected a number, got {_C._type_of(value)}.")
    _C._check_tiles(n)
    _C.checkpoint(region_name=region_name, **options)  # complains now, not at the call

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
