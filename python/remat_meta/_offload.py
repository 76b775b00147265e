# SPDX-License-Identifier: BSD-3-Clause

"""offload(): a store whose copies run beside what is computed."""

from __future__ import annotations

import torch

from . import _C

_WHEN_FULL = ("keep", "raise")


def offload(
    memory: str = "host",
    *,
    min_bytes: int = 1 << 20,
    max_bytes: int | None = None,
    prefetch_bytes: int = 256 << 20,
    max_leaving_bytes: int | None = None,
    device: torch.device | str | None = None,
    when_full: str = "keep",
) -> _C.OffloadEngine:
    """A store for OFFLOAD calls and rules: checkpoint(offload_store=offload("host")).

    What they keep leaves the device while the forward goes on: a storage, once for all that share it,
    when nobody else has it any more; its memory goes when the copy is done. It comes back while the
    backward goes on, before it is asked for: in the order of the last step if this one has put the same
    sizes, else the last put first. What has not left when backward asks for it stays. Several regions,
    steps and threads may use one, and should: what it has taken from the system it uses again.

    memory: "host", memory of the host, pinned where the device wants that.
    min_bytes: smaller storages stay (default 1 MiB).
    max_bytes: the most that is away at once; what comes then stays.
    prefetch_bytes: the most that is fetched before backward asks for it (default 256 MiB).
    max_leaving_bytes: the most that is on its way out at once; the forward waits then.
    device: what is elsewhere stays. Default: any device.
    when_full: "keep" what no memory has room for, with a warning, or "raise".

    stats() of what it returns counts all of this.
    """
    if memory != "host":
        raise ValueError(f'[offload] memory: expected "host", got {memory!r}.')
    if when_full not in _WHEN_FULL:
        raise ValueError(f"[offload] when_full: expected one of {', '.join(_WHEN_FULL)}, got {when_full!r}.")
    sizes = {
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "prefetch_bytes": prefetch_bytes,
        "max_leaving_bytes": max_leaving_bytes,
    }
    for name, size in sizes.items():
        optional = name.startswith("max")
        if not ((isinstance(size, int) and not isinstance(size, bool) and size >= 0) or (optional and size is None)):
            alternative = " or None" if optional else ""
            raise ValueError(f"[offload] {name}: expected a number of bytes{alternative}, 0 or more, got {size!r}.")
    place = None if device is None else torch.device(device)
    return _C._offload_engine(*sizes.values(), place, when_full == "raise", None)
