# SPDX-License-Identifier: BSD-3-Clause

"""Rematerialisation for PyTorch: checkpoint(options)(fn)(args...).

Importing the package changes nothing outside of it. The first call that makes a region patches torch.func.functional_call
and torch.compile so that remat notices them. The first region that runs installs what remat needs in torch's dispatcher
and autograd engine.
"""

from . import _torch_version

# The compiled module is in a folder for the minor version of torch.
__path__.insert(0, _torch_version.compiled_folder(__path__[0]))

from . import _compile, _functional, testing  # noqa: E402, F401
from ._auto_checkpoint import auto_checkpoint, memory_plan  # noqa: E402
from ._build_info import VERSION as __version__  # noqa: E402
from ._C import (  # noqa: E402
    MemoryMeter,
    MemoryPlan,
    MemoryPlanner,
    PolicyTable,
    Recorder,
    RematHandle,
    ReplayMismatch,
    StepProfile,
    auto_forward,
    checkpoint,
    get_handle,
    host_memory_store,
    is_placeholder,
    is_recomputing,
    memory_report,
    name_scope,
    native_op,
    op,
    recompute_needs_tensor,
    recompute_pointwise,
    region,
    region_tapes,
    safe_defaults,
    save_compute_intensive,
    save_for_backward,
    save_matmuls,
    saved_tensors_hooks,
)
from ._device import register_device  # noqa: E402
from ._hooks import (  # noqa: E402
    OffloadStore,
    RecomputeStateHook,
    SavedTensorInfo,
    SavedTensorKind,
    current_saved_tensor_info,
)
from ._offload import mask_store, offload, rounding_store  # noqa: E402
from ._oom import (  # noqa: E402
    clear_memory_snapshot_cache,
    discover_autograd_roots,
    format_oom_saved_tensors_report,
    memory_snapshot_annotate,
    oom_observer,
)
from ._policy import CheckpointPolicy, Cuts, PolicyContext  # noqa: E402
from ._profile import profile  # noqa: E402
from ._record import record  # noqa: E402
from ._reports import (  # noqa: E402
    format_current_memory_report,
    format_saved_tensors_report,
    print_current_memory_report,
    print_saved_tensors_report,
)
from ._sequential import checkpoint_sequential  # noqa: E402
from ._tiled import tiled  # noqa: E402
from ._torch_checkpoint import (  # noqa: E402
    patch_torch_checkpoint,
    set_checkpoint_debug_enabled,
    set_checkpoint_early_stop,
    torch_checkpoint,
)
from ._trace import collect_trace, trace_scope  # noqa: E402

__all__ = [
    "CheckpointPolicy",
    "Cuts",
    "MemoryMeter",
    "MemoryPlan",
    "MemoryPlanner",
    "OffloadStore",
    "PolicyContext",
    "PolicyTable",
    "RecomputeStateHook",
    "Recorder",
    "RematHandle",
    "ReplayMismatch",
    "SavedTensorInfo",
    "SavedTensorKind",
    "StepProfile",
    "__version__",
    "auto_checkpoint",
    "auto_forward",
    "checkpoint",
    "checkpoint_sequential",
    "clear_memory_snapshot_cache",
    "collect_trace",
    "current_saved_tensor_info",
    "discover_autograd_roots",
    "format_current_memory_report",
    "format_oom_saved_tensors_report",
    "format_saved_tensors_report",
    "get_handle",
    "host_memory_store",
    "is_placeholder",
    "is_recomputing",
    "mask_store",
    "memory_plan",
    "memory_report",
    "memory_snapshot_annotate",
    "name_scope",
    "native_op",
    "offload",
    "oom_observer",
    "op",
    "patch_torch_checkpoint",
    "print_current_memory_report",
    "print_saved_tensors_report",
    "profile",
    "recompute_needs_tensor",
    "recompute_pointwise",
    "record",
    "region",
    "region_tapes",
    "register_device",
    "rounding_store",
    "safe_defaults",
    "save_compute_intensive",
    "save_for_backward",
    "save_matmuls",
    "saved_tensors_hooks",
    "set_checkpoint_debug_enabled",
    "set_checkpoint_early_stop",
    "testing",
    "tiled",
    "torch_checkpoint",
    "trace_scope",
]
