# SPDX-License-Identifier: BSD-3-Clause

"""Text reports of what regions and graphs hold for backward."""

import collections.abc
import typing

import torch

from . import _C

Annotate = typing.Callable[[torch.Tensor], str | None]
"""Returns a few words about a tensor for its line in a report, or None. Gets a detached alias of the tensor."""

Roots = torch.Tensor | collections.abc.Iterable[torch.Tensor] | None


def format_current_memory_report(annotate: Annotate | None = None) -> str:
    """Returns a text of all that a region holds for backward. Call it in the region's function.

    The text has a line for the region (bytes, number of storages), one per SAVE call, and one per storage with bytes,
    name, shape and dtype. A storage's name comes from save_for_backward(), or is saved.<i>, or output <i> for a result
    that recomputed code reads. The storages' bytes add up to the region's. Leaves that require grad are not counted.
    `annotate` adds words to each storage.

    Raises RuntimeError outside regions.
    """
    return _C._current_memory_report(annotate)


def print_current_memory_report(file: typing.TextIO | None = None, annotate: Annotate | None = None) -> None:
    """Prints format_current_memory_report(annotate) to `file`, by default stdout."""
    print(format_current_memory_report(annotate), file=file)


def format_saved_tensors_report(roots: Roots = None, annotate: Annotate | None = None) -> str:
    """Returns a text of all that is kept for backward in this process.

    The text has the total in bytes; regions with equal contents in one line, "layer.0-11"; with `roots`, a Tensor or an
    iterable of them, the nodes of their graphs outside regions by type; and the first region of each group in full, as
    in format_current_memory_report(). Each storage is counted once: in the first region in the order of names, and in
    regions before graphs. Leaves that require grad and their views are not counted.

    No hook runs, so tensors that hooks keep outside regions are not counted, nor those that C++ custom functions save
    there. For graphs whose backward has run, only what is left is counted. Thread-safe; regions whose forward runs
    on another thread are left out. Raises TypeError if roots are no tensors.
    """
    return _C._saved_tensors_report(_as_list(roots), annotate)


def print_saved_tensors_report(roots: Roots = None, file: typing.TextIO | None = None, annotate: Annotate | None = None) -> None:
    """Prints format_saved_tensors_report(roots, annotate) to `file`, by default stdout."""
    print(format_saved_tensors_report(roots, annotate), file=file)


def _as_list(roots):
    if roots is None:
        return None
    found = [roots] if isinstance(roots, torch.Tensor) else list(roots)
    for root in found:
        if not isinstance(root, torch.Tensor):
            raise TypeError(
                f"[format_saved_tensors_report] roots: expected a Tensor or an iterable of Tensors, got {_C._type_of(root)}."
            )
    return found
