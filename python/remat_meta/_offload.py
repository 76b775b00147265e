# SPDX-License-Identifier: BSD-3-Clause

"""offload(): a store that copies tensors while the step computes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

import torch

from . import _C

_MEMORIES = ("host", "disk")
_WHEN_FULL = ("keep", "raise")
_SMALL_DTYPES = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


def offload(
    memory: str | Sequence[str] = "host",
    *,
    min_bytes: int = 1 << 20,
    max_bytes: int | None = None,
    prefetch_bytes: int = 256 << 20,
    max_leaving_bytes: int | None = None,
    host_bytes: int | None = None,
    disk_bytes: int | None = None,
    directory: str | os.PathLike[str] | None = None,
    checksums: bool = False,
    device: torch.device | str | None = None,
    when_full: Literal["keep", "raise"] = "keep",
) -> _C.OffloadEngine:
    """Returns a store for OFFLOAD calls and rules: checkpoint(offload_store=offload("host")).

    Kept tensors leave the device while the forward continues. When nobody else holds a storage any more, it is
    copied, once for all tensors that share it, and freed after the copy. While backward runs, storages are
    fetched before it needs them, in the order of the last step if this step has put the same sizes, else the
    last put first. A storage that has not left when backward needs it stays. Let regions, steps and threads
    share a store, because a store reuses the memory that it has allocated.

    memory: "host" for host memory, pinned where the device profits from that; "disk" for an unnamed file in
        `directory`; or both, in the order in which they are filled: ("host", "disk").
    min_bytes: smaller storages stay (default 1 MiB).
    max_bytes: limit on the bytes that are away at once; further storages stay.
    prefetch_bytes: limit on the bytes that are fetched before backward needs them (default 256 MiB).
    max_leaving_bytes: limit on the bytes that are leaving at once; beyond it the forward waits.
    host_bytes, disk_bytes: limit on the bytes in each memory.
    checksums: compares data from disk with a checksum of what was written.
    device: storages on other devices stay. Default: any device.
    when_full: "keep" storages that no memory has room for, with a warning, or "raise".

    stats() of the returned store counts what left, came back, was fetched ahead and stayed.
    """
    names = (memory,) if isinstance(memory, str) else tuple(memory) if isinstance(memory, (list, tuple)) else ()
    if not names or any(name not in _MEMORIES for name in names) or len(set(names)) < len(names):
        raise ValueError(f'[offload] memory: expected "host", "disk" or both in an order, got {memory!r}.')
    if when_full not in _WHEN_FULL:
        raise ValueError(f"[offload] when_full: expected one of {', '.join(_WHEN_FULL)}, got {when_full!r}.")
    if directory is not None and not isinstance(directory, (str, os.PathLike)):
        raise TypeError(f"[offload] directory: expected a path, got {type(directory).__name__}.")
    if ("disk" in names) != (directory is not None):
        wanted = 'a folder on the disk for "disk"' if "disk" in names else 'none, as memory is not "disk"'
        raise ValueError(f"[offload] directory: expected {wanted}, got {directory!r}.")
    _check_bytes("min_bytes", min_bytes)
    _check_bytes("prefetch_bytes", prefetch_bytes)
    limits = {"max_bytes": max_bytes, "max_leaving_bytes": max_leaving_bytes, "host_bytes": host_bytes, "disk_bytes": disk_bytes}
    for name, limit in limits.items():
        if limit is not None:
            _check_bytes(name, limit, " or None")
    of_memory = {
        "host": ("host", host_bytes, "", False),
        "disk": ("disk", disk_bytes, "" if directory is None else os.fspath(directory), bool(checksums)),
    }
    place = None if device is None else torch.device(device)
    return _C._offload_engine(
        [of_memory[name] for name in names],
        min_bytes,
        max_bytes,
        prefetch_bytes,
        max_leaving_bytes,
        place,
        when_full == "raise",
        None,
    )


def _check_bytes(name: str, size: object, alternative: str = "") -> None:
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 1 << 63:
        raise ValueError(f"[offload] {name}: expected a number of bytes{alternative}, 0 or more, below 2^63, got {size!r}.")


def rounding_store(dtype: torch.dtype, store: _C.CppOffloadStore | None = None) -> _C.RoundingStore:
    """Returns a store that keeps floating-point numbers in a smaller dtype, so that gradients are approximations.

    Each tensor is scaled by a power of two so that its largest number is near the largest of `dtype`, kept on the device or
    in `store`, and restored in its own dtype. Other tensors, tensors that do not fill their memory, and tensors whose dtype
    is not larger are kept unchanged. Regions take the store with determinism_check="none" only.

    dtype: torch.bfloat16, torch.float16, torch.float8_e4m3fn or torch.float8_e5m2.

    stats() of the returned store has the number of tensors and bytes, and the errors: max_error, the largest difference of an
    element, and max_relative_error, the largest ratio of the 2-norm of a tensor's differences to its own 2-norm.
    """
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"[rounding_store] dtype: expected a torch.dtype, got {type(dtype).__name__}.")
    if dtype not in _SMALL_DTYPES:
        raise ValueError(f"[rounding_store] dtype: expected one of {', '.join(map(str, _SMALL_DTYPES))}, got {dtype}.")
    return _C._rounding_store(dtype, _inner("rounding_store", store))


def mask_store(store: _C.CppOffloadStore | None = None) -> _C.MaskStore:
    """Returns a store that keeps bool tensors as bits, an eighth of their bytes, and restores them exactly.

    The bits stay on the device or go to `store`; other tensors go there unchanged.

    stats() of the returned store has the number of masks (count), their bytes (mask_bytes) and those of their bits
    (packed_bytes).
    """
    return _C._mask_store(_inner("mask_store", store))


def _inner(where: str, store: object) -> _C.CppOffloadStore | None:
    if store is None or isinstance(store, _C.CppOffloadStore):
        return store
    raise TypeError(
        f"[{where}] store: expected what offload(), host_memory_store() or another of remat's stores returns, got "
        f"{type(store).__name__}. A store that is written in Python stands alone."
    )
