# SPDX-License-Identifier: BSD-3-Clause

"""Reports for the moment when memory runs out, and the places where tensors were allocated."""

import bisect
import gc
import os
import sys
import traceback
import typing
from collections.abc import Mapping

import torch
from torch._subclasses.fake_tensor import FakeTensor

from . import _C
from ._reports import Annotate, format_saved_tensors_report


def discover_autograd_roots() -> list[torch.Tensor]:
    """Returns all tensors that Python can reach and that have a grad_fn, to be the roots of a report where there is no
    loss. Leaves and fake tensors are excluded. Looks at every object of the process."""
    return [found for found in gc.get_objects() if _is_root(found)]


def _is_root(found):
    # Checks the type, because isinstance reads __class__, which runs foreign code for lazy objects and mocks.
    if not issubclass(type(found), torch.Tensor) or issubclass(type(found), FakeTensor):
        return False
    try:
        return found.grad_fn is not None
    except Exception:  # a subclass that hides grad_fn
        return False


def format_oom_saved_tensors_report(annotate: Annotate | None = None) -> str:
    """Returns format_saved_tensors_report() for all graphs that discover_autograd_roots() finds, and the changes
    that would free memory of regions: memory_report().changes_str()."""
    return _oom_report(annotate)


def _oom_report(annotate=None, device="", wanted=0):
    report = format_saved_tensors_report(discover_autograd_roots(), annotate)
    changes = _C.memory_report().changes_str(device, wanted).rstrip()
    return f"{report}\n\n{changes}" if changes else report


def oom_observer(device: int, alloc: int, device_alloc: int, device_free: int) -> None:
    """Prints to stderr what is kept for backward; for torch._C._cuda_attach_out_of_memory_observer.

    `device`: index; `alloc`: requested bytes; `device_alloc`: size of the device in bytes, or the limit of
    set_per_process_memory_fraction(); `device_free`: free bytes of the device. Allocates nothing on the device,
    unpacks nothing, and never raises: failures are printed with their traceback, since the allocator's own error
    follows.
    """
    try:
        _print_oom_report(device, alloc, device_alloc, device_free)
    except BaseException:  # including interrupts, since the caller is the allocator
        print("[oom_observer] the report of saved tensors failed:", file=sys.stderr)
        traceback.print_exc(file=sys.stderr)


def _print_oom_report(device, alloc, device_alloc, device_free):
    print(
        f"[oom_observer] device {device} is out of memory: {alloc} B were asked for. Tensors of this process have "
        f"{torch.cuda.memory_allocated(device)} B (memory_allocated) of the {torch.cuda.memory_reserved(device)} B that its "
        f"allocator has (memory_reserved). The device has {device_alloc} B, of which {device_free} B are free.\n"
        f"{_oom_report(device=f'cuda:{device}', wanted=alloc)}",
        file=sys.stderr,
    )


_fetched: Mapping[str, typing.Any] | None = None
_LIBRARIES = ("torch", "remat_meta")


def clear_memory_snapshot_cache() -> None:
    """Lets the next memory_snapshot_annotate() fetch a new snapshot."""
    global _fetched
    _fetched = None


def memory_snapshot_annotate(snapshot: Mapping[str, typing.Any] | None = None) -> Annotate:
    """For `annotate=`: returns a function that says where a CUDA tensor was allocated, as "model.py:12 forward".

    `snapshot`: the result of torch.cuda.memory._snapshot(); by default it is fetched once, until
    clear_memory_snapshot_cache(). torch.cuda.memory._record_memory_history() must have been on when the
    tensor was allocated. The place is the innermost frame outside torch and remat_meta, else the innermost of all.
    The function returns None for a tensor in no active block of the snapshot; views count as their storage.
    """
    global _fetched
    if snapshot is None:
        if _fetched is None:
            _fetched = torch.cuda.memory._snapshot()
        snapshot = _fetched
    blocks = sorted(_active_blocks(snapshot))
    starts = [start for start, *_ in blocks]

    def annotate(tensor: torch.Tensor) -> str | None:
        address = tensor.untyped_storage().data_ptr()
        i = bisect.bisect_right(starts, address) - 1
        if i < 0:
            return None
        start, size, site = blocks[i]
        return (site or None) if address < start + size else None

    return annotate


def _active_blocks(snapshot):
    for segment in snapshot.get("segments", ()):
        address = segment.get("address", 0)
        for block in segment.get("blocks", ()):
            start = block.get("address", address)
            address = start + block["size"]
            if block["state"].startswith("active"):
                yield start, block["size"], _site(block.get("frames"))


def _site(frames):
    """Returns the text for the frame to show, or "" if there are no `frames`, which begin with the innermost."""
    frames = frames or ()
    frame = next((frame for frame in frames if not _is_library(frame)), next(iter(frames), None))
    if frame is None:
        return ""
    file = os.path.basename(frame.get("filename", "?"))
    return f"{file}:{frame.get('line')} {frame.get('name', '')}".rstrip()


def _is_library(frame):
    name = frame.get("filename", "?")
    # C++ frames have no file of their own
    return name in ("", "??") or any(part in _LIBRARIES for part in name.split("/")[:-1])
