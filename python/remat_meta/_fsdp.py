# SPDX-License-Identifier: BSD-3-Clause

"""Regions inside and around modules that FSDP2 has sharded.

Note [Sharded modules]: fully_shard gives a module hooks that gather its weights before its forward and free them
after it, and gives tensors hooks that gather and free them in backward. These ops are hidden from regions. Casts of inputs and
outputs are visible to regions. In a replay the module's hooks cast as in the forward. Apart from that, they act like
FSDP's own hook before a backward: they gather the weights if needed, and FSDP reduces the gradients and frees the weights
after the backward. A replay that does not call the module gathers the memory that it needs: Note [Gathered memory].
"""

import functools
import weakref

import torch
from torch.distributed._composable_state import _module_state_mapping
from torch.distributed.fsdp._fully_shard._fsdp_common import TrainingState, _cast_fp_tensor
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.distributed.utils import _apply_to_tensors, _to_kwargs

from . import _C
from ._torch_compat import fsdp_groups

_UNSEEN = (
    (FSDPState, "_lazy_init", "_pre_backward", "_root_post_backward_final_callback"),
    (FSDPParamGroup, "unshard", "wait_for_unshard", "reshard", "post_backward"),
)


def _unseen(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        return _C._call_unseen(function, *args, **kwargs)

    return call


def _cast(dtype, value):
    return value if dtype is None else _apply_to_tensors(functools.partial(_cast_fp_tensor, dtype), value)


def _is_repeated(state):
    """Returns True in a replay by remat, or by another checkpoint around a region."""
    return _C._in_replay() or (_C._in_scope() and state._training_state == TrainingState.PRE_BACKWARD)


def _gather(state):
    """Gathers the weights, as before a backward."""
    if torch._C._current_graph_task_id() != -1:
        state._pre_backward(None)
    for group in fsdp_groups(state):
        if group.is_unsharded:
            continue
        # The user may declare that a backward needs no weights (unshard_in_backward), but the replay needs them. FSDP heeds the
        # declaration only in the state PRE_BACKWARD.
        with group.use_training_state(TrainingState.IDLE):
            group.unshard()
            group.wait_for_unshard()


def _gather_again(state, name):
    if (alive := state()) is None:
        raise RuntimeError(
            f"[replay] parameter {name}: expected the module that fully_shard has sharded to be there until "
            "backward, which needs the parameter gathered again, got one that is gone. Keep the module."
        )
    _gather(alive)


def _note_gathered(state):
    for group in fsdp_groups(state):
        if getattr(group, "_noted_by_remat", False) or not group.is_unsharded:
            continue
        for parameter in group.fsdp_params:
            gather = functools.partial(_gather_again, weakref.ref(state), parameter._param_fqn)
            for tensor in (*parameter.all_gather_outputs, *parameter._unsharded_inner_tensors):
                _C._note_gathered(tensor, parameter.sharded_param, gather)
        group._noted_by_remat = True


def _pre_forward(original, state, module, args, kwargs):
    if not _is_repeated(state):
        result = original(state, module, args, kwargs)
        _note_gathered(state)
        return result
    _C._call_unseen(_gather, state)
    if state._is_root and state._device.type != "cpu":
        (args,), (kwargs,) = _to_kwargs(args, kwargs, state._device, False)
    if state._mp_policy.cast_forward_inputs:
        args, kwargs = (_cast(state._mp_policy.param_dtype, value) for value in (args, kwargs))
    for group in fsdp_groups(state):
        args, kwargs = group._register_post_backward_hook(args, kwargs)
    return args, kwargs


def _post_forward(original, state, module, inputs, output):
    if not _is_repeated(state):
        return original(state, module, inputs, output)
    return _cast(state._mp_policy.output_dtype, output)


def _replace(name, function):
    """Replaces a method of FSDPState. Sets the closure cell from which disable_if_config_true calls the method, because
    modules that are sharded already hold the result of that decorator."""
    method = getattr(FSDPState, name)
    cell = method.__closure__[method.__code__.co_freevars.index("func")]
    original = cell.cell_contents
    cell.cell_contents = functools.wraps(original)(functools.partial(function, original))


def install():
    for owner, *names in _UNSEEN:
        for name in names:
            setattr(owner, name, _unseen(getattr(owner, name)))
    _replace("_pre_forward", _pre_forward)
    _replace("_post_forward", _post_forward)
    for state in list(_module_state_mapping.values()):  # modules whose forward has begun may have gathered weights
        if isinstance(alive := state(), FSDPState):
            _note_gathered(alive)
