# SPDX-License-Identifier: BSD-3-Clause

"""Checkpoints a chain of layers in segments."""

import collections.abc
import functools
import itertools
import typing

import torch

from . import _C

_Layers = torch.nn.Module | collections.abc.Iterable[typing.Callable[[typing.Any], typing.Any]]
_Chain = typing.Callable[[typing.Any], typing.Any]


def _run(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def layers_of(chain):
    """Returns the layers of a chain. Raises TypeError for a module whose forward may not be a chain."""
    if isinstance(chain, torch.nn.Sequential):
        return [*chain._modules.values()]  # unlike children(), keeps a module that occurs twice
    is_module = isinstance(chain, torch.nn.Module) and not isinstance(chain, torch.nn.ModuleList)
    if isinstance(chain, collections.abc.Iterable) and not is_module:
        return [*chain]
    raise TypeError(
        "[checkpoint_sequential] layers: expected torch.nn.Sequential, or a list of functions that take a "
        f"Tensor and return one, got {_C._type_of(chain)}. Write checkpoint(options)(fn)(x) for one function."
    )


def split(layers, segments):
    """Splits the layers into `segments` parts of equal length; the last part gets the rest. Raises ValueError."""
    layers = layers_of(layers)
    if not 1 <= segments <= len(layers):
        raise ValueError(f"[checkpoint_sequential] segments: expected 1 to {len(layers)}, the number of layers, got {segments}.")
    length = len(layers) // segments
    starts = [i * length for i in range(segments)] + [len(layers)]
    return [layers[a:b] for a, b in itertools.pairwise(starts)]


@typing.overload
def checkpoint_sequential(
    segments: int, *, region_name: str | None = None, **options: typing.Any
) -> typing.Callable[[_Layers], _Chain]: ...
@typing.overload
def checkpoint_sequential(
    layers: _Layers, segments: int, input: typing.Any, /, use_reentrant: bool | None = None, *, preserve_rng_state: bool = True
) -> typing.Any: ...
def checkpoint_sequential(
    segments: typing.Any, *args: typing.Any, region_name: str | None = None, **options: typing.Any
) -> typing.Any:
    """Checkpoints a chain in segments: checkpoint_sequential(segments, **options)(layers)(x).

    `layers`: torch.nn.Sequential, or functions that take a Tensor and return one. They are split into `segments` parts
    of equal length (the last gets the rest). Each part but the last is a region named region_name + "[i]"; backward would
    recompute the last at once. Options: those of checkpoint(). Raises ValueError unless 1 <= segments <= number of layers.

    torch's form, checkpoint_sequential(layers, segments, x, use_reentrant=..., preserve_rng_state=
    ...), works too.
    """
    if args:
        return _torch_form(segments, *args, **options)
    if not isinstance(segments, int) or isinstance(segments, bool):
        raise TypeError(
            "[checkpoint_sequential] segments: expected a number in the first call, got "
            f"{_C._type_of(segments)}. Write checkpoint_sequential(segments, **options)(layers)(x)."
        )
    _C.checkpoint(region_name=region_name, **options)  # raises now, not at the call

    def wrap(layers):
        *first, last = split(layers, segments)
        steps = [
            _C.checkpoint(region_name=f"{region_name or ''}[{i}]", **options)(functools.partial(_run, part))
            for i, part in enumerate(first)
        ]
        return functools.partial(_run, [*steps, *last])

    return wrap


def _torch_form(layers, segments, input, use_reentrant=None, *, preserve_rng_state=True):
    chain = checkpoint_sequential(segments, preserve_rng_state=preserve_rng_state, _any_output=True)
    return chain(layers)(input)
