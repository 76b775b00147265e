# SPDX-License-Identifier: BSD-3-Clause

"""The device remat_meta in Python: register_device() and the module torch.remat_meta.

torch takes a registered device for its accelerator (torch.accelerator, DataLoader, fork_rng and
torch.utils.checkpoint ask torch.remat_meta then). What such code wants is the accelerator that
computes, so questions about that are handed on to CUDA: is_available() is False on a machine
without one, as it was before. Questions about random state and AMP are answered for remat_meta.
"""

import contextlib
import sys
import types

import torch

from . import _C


def _real():
    """The module of the accelerator that computes; None without one."""
    return torch.cuda if torch.cuda.is_available() else None


def is_available():
    """True if torch has an accelerator that computes. remat_meta itself is there once registered."""
    return _real() is not None


def is_initialized():
    """True: there is nothing to initialise. torch.utils.checkpoint asks."""
    return True


def device_count():
    """Accelerators that compute; 1 without any, for remat_meta."""
    real = _real()
    return real.device_count() if real else 1


def current_device():
    """Index of the accelerator in use; 0 without one."""
    real = _real()
    return real.current_device() if real else 0


def set_device(device):
    """Sets the accelerator in use; does nothing without one."""
    real = _real()
    if real:
        real.set_device(torch.device(device).index if isinstance(device, str) else device)


@contextlib.contextmanager
def device(index):
    """torch.cuda.device() of the accelerator that computes; does nothing without one."""
    real = _real()
    with real.device(index) if real else contextlib.nullcontext():
        yield


def synchronize(device=None):
    """Waits for the accelerator that computes; returns at once without one."""
    real = _real()
    if real:
        real.synchronize(device if device is None or torch.device(device).type == "cuda" else None)


def current_stream(device=None):
    """Stream of the accelerator that computes; without one, that of remat_meta."""
    real = _real()
    return real.current_stream() if real else torch.Stream(device="remat_meta:0")


def stream(stream):
    """Context manager for a stream of the accelerator that computes; without one, does nothing."""
    real = _real()
    return real.stream(stream) if real else contextlib.nullcontext()


def empty_cache():
    """Frees what the accelerator that computes has cached."""
    real = _real()
    if real:
        real.empty_cache()


def get_amp_supported_dtype():
    """All that autocast knows: on remat_meta dtypes are computed, not numbers."""
    return [torch.bfloat16, torch.float16, torch.float32]


def is_bf16_supported():
    return True


def _is_in_bad_fork():
    return False


# torch asks for the state of remat_meta's generator without going through torch.Generator.
_generator = None


def _default_generator():
    global _generator
    if _generator is None:
        _generator = torch.Generator(device="remat_meta")
    return _generator


def manual_seed(seed):
    """Seeds remat_meta's generator, from which no number is drawn."""
    _default_generator().manual_seed(int(seed))


manual_seed_all = manual_seed


def initial_seed():
    return _default_generator().initial_seed()


def seed():
    return _default_generator().seed()


seed_all = seed


def get_rng_state(device="remat_meta"):
    """State of the generator: 8 bytes on the CPU."""
    return _default_generator().get_state()


def set_rng_state(new_state, device="remat_meta"):
    _default_generator().set_state(new_state)


def get_rng_state_all():
    return [get_rng_state()]


def set_rng_state_all(new_states):
    for state in new_states:
        set_rng_state(state)


def _make_module():
    module = types.ModuleType("torch.remat_meta", "The device remat_meta. See remat_meta._device.")
    here = vars(sys.modules[__name__])
    for name, value in here.items():
        if isinstance(value, types.FunctionType) and name not in ("_real", "_make_module", "register_device"):
            setattr(module, name, value)
    module.Stream = torch.Stream
    module.Event = torch.Event
    return module


def register_device() -> None:
    """Gives torch's free device the name remat_meta, for good, and torch the module torch.remat_meta.

    From then on torch.device("remat_meta") names a device whose tensors have shapes and dtypes but
    no data: a whole model fits on it. torch takes it for its accelerator; see torch.remat_meta. A
    second call does nothing. Raises NotImplementedError, and changes nothing, if another library
    has the device.
    """
    if torch._C._get_privateuse1_backend_name() == "remat_meta" and hasattr(torch, "remat_meta"):
        return
    _C.register_device()
    torch.utils.backend_registration._privateuse1_backend_name = "remat_meta"
    torch._register_device_module("remat_meta", _make_module())
