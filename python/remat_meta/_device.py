# SPDX-License-Identifier: BSD-3-Clause

"""The device remat_meta in Python: register_device() and the module torch.remat_meta.

torch takes a registered device for its accelerator: torch.accelerator, DataLoader, fork_rng and
torch.utils.checkpoint then use torch.remat_meta. The device computes nothing and is registered
only where no other device computes, so it is never available, and waits return at once.
"""

import contextlib
import sys
import types

import torch

from . import _C


def is_available():
    """Returns False: torch has no accelerator that computes. remat_meta itself exists once it is registered."""
    return False


def is_initialized():
    """Returns True, since nothing needs initialization. torch.utils.checkpoint calls this."""
    return True


def device_count():
    return 1


def current_device():
    return 0


def set_device(device):
    """Does nothing: there is one device."""


def device(index):
    """Context manager that does nothing: there is one device."""
    return contextlib.nullcontext()


def synchronize(device=None):
    """Returns at once."""


def current_stream(device=None):
    return torch.Stream(device="remat_meta:0")


def stream(stream):
    """Context manager that does nothing: no stream has work."""
    return contextlib.nullcontext()


def empty_cache():
    """Does nothing: no memory is used."""


def get_amp_supported_dtype():
    """Returns all dtypes that autocast knows: remat_meta computes dtypes, not numbers."""
    return [torch.bfloat16, torch.float16, torch.float32]


def is_bf16_supported():
    return True


def _is_in_bad_fork():
    return False


# torch.random.fork_rng() and torch.utils.checkpoint call get_rng_state() of this module.
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
    """Returns the state of the generator: 8 bytes on the CPU."""
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
        if isinstance(value, types.FunctionType) and name not in ("_make_module", "_check_alone", "register_device"):
            setattr(module, name, value)
    module.Stream = torch.Stream
    module.Event = torch.Event
    return module


def _check_alone():
    """Raises where torch has another accelerator. Unlike the library's check, it does not initialise CUDA: forks may use it."""
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
    """Gives torch's spare device (PrivateUse1) the name remat_meta until the process ends; adds torch.remat_meta, a module.

    From then on torch.device("remat_meta") is a device whose tensors have shapes and dtypes but no data: a whole model fits on
    it. torch takes it for its accelerator; see torch.remat_meta. A second call does nothing. Raises NotImplementedError, and
    changes nothing, if another library has the device, or if the process sees a GPU or another accelerator.
    """
    name = torch._C._get_privateuse1_backend_name()
    if name == "remat_meta" and hasattr(torch, "remat_meta"):
        return
    if name == "privateuseone":
        _check_alone()
    _C.register_device()
    torch.utils.backend_registration._privateuse1_backend_name = "remat_meta"
    torch._register_device_module("remat_meta", _make_module())
