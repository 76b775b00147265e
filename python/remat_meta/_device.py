# SPDX-License-Identifier: BSD-3-Clause

"""The device remat_meta in Python: register_device() and the module torch.remat_meta.

torch takes a registered device for its accelerator: torch.accelerator, DataLoader, fork_rng and
torch.utils.checkpoint then use torch.remat_meta. The device computes nothing and is registered
only where no other device computes, so is_available() is false, and waits return at once.
"""

import contextlib
import functools
import types

import torch

from . import _C


@functools.cache
def _generator():
    return torch.Generator(device="remat_meta")


def _set_states(states):
    for state in states:
        _generator().set_state(state)


def _seed(seed):
    _generator().manual_seed(int(seed))


def _make_module():
    """Makes the module torch.remat_meta, for one device without memory, without work in streams and without random numbers."""
    module = types.ModuleType("torch.remat_meta", "The device remat_meta. See remat_meta._device.")
    vars(module).update(
        Stream=torch.Stream,
        Event=torch.Event,
        is_available=lambda: False,  # because the device computes nothing
        is_initialized=lambda: True,  # torch.utils.checkpoint calls this
        _is_in_bad_fork=lambda: False,
        device_count=lambda: 1,
        current_device=lambda: 0,
        set_device=lambda device: None,
        device=lambda index: contextlib.nullcontext(),
        synchronize=lambda device=None: None,
        current_stream=lambda device=None: torch.Stream(device="remat_meta:0"),
        stream=lambda stream: contextlib.nullcontext(),
        empty_cache=lambda: None,
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16, torch.float32],  # all that autocast knows
        is_bf16_supported=lambda: True,
        # torch.random.fork_rng() and torch.utils.checkpoint call get_rng_state() of this module.
        manual_seed=_seed,
        manual_seed_all=_seed,
        initial_seed=lambda: _generator().initial_seed(),
        seed=lambda: _generator().seed(),
        seed_all=lambda: _generator().seed(),
        get_rng_state=lambda device="remat_meta": _generator().get_state(),
        set_rng_state=lambda new_state, device="remat_meta": _set_states([new_state]),
        get_rng_state_all=lambda: [_generator().get_state()],
        set_rng_state_all=_set_states,
    )
    return module


def _check_alone():
    """Raises if torch has another accelerator. Unlike the check in C++, leaves CUDA uninitialised, so that forks may use CUDA."""
    count = torch.accelerator.device_count()
    if count > 0:
        raise NotImplementedError(
            "[register_device] device: expected a process without another accelerator, got "
            f"{count} of {torch.accelerator.current_accelerator().type}. torch has one accelerator in a process. It would be "
            "remat_meta from here on, and each backward on the other would end in an internal error of torch. Use remat_meta "
            "in a process that sees no GPU (CUDA_VISIBLE_DEVICES= in its environment), or do without it; checkpoints do not "
            "need it."
        )


def register_device() -> None:
    """Gives torch's spare device (PrivateUse1) the name remat_meta until the process ends, and adds the module torch.remat_meta.

    From then on torch.device("remat_meta") is a device whose tensors have shapes and dtypes but no data: a whole model fits on
    it. torch takes the device for its accelerator; see torch.remat_meta. A second call does nothing. Raises
    NotImplementedError, and changes nothing, if another library has PrivateUse1, or if the process sees another accelerator.
    """
    name = torch._C._get_privateuse1_backend_name()
    if name == "remat_meta" and hasattr(torch, "remat_meta"):
        return
    if name == "privateuseone":
        _check_alone()
    _C.register_device()
    torch.utils.backend_registration._privateuse1_backend_name = "remat_meta"
    torch._register_device_module("remat_meta", _make_module())
