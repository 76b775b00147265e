# SPDX-License-Identifier: BSD-3-Clause

"""Runs calls of torch.utils.checkpoint on remat, under names of our own or in place of torch's."""

import contextlib
import functools
import os
import sys
import typing

import torch
import torch.utils.checkpoint as stock
from torch.utils.checkpoint import set_checkpoint_debug_enabled, set_checkpoint_early_stop

from . import _C
from ._build_info import TORCH_VERSION
from ._install import on_first_use
from ._torch_version import minor

__all__ = [
    "patch_torch_checkpoint",
    "set_checkpoint_debug_enabled",
    "set_checkpoint_early_stop",
    "torch_checkpoint",
]

_R = typing.TypeVar("_R")


def _op_site():
    """Returns the three innermost lines of user code on this thread: "model.py:12 in forward < ..."."""
    found = []
    frame = sys._getframe(1)
    while frame is not None and len(found) < 3:
        code = frame.f_code
        if not code.co_filename.startswith(_LIBRARIES):
            name = os.path.basename(code.co_filename)
            found.append(f"{name}:{frame.f_lineno} in {code.co_name}")
        frame = frame.f_back
    return " < ".join(found)


_LIBRARIES = tuple(os.path.dirname(file) + os.sep for file in (torch.__file__, __file__))


def _builder(preserve_rng_state, determinism_check, early_stop, debug, policy=None):
    if determinism_check not in ("default", "none"):
        raise ValueError(f'[torch_checkpoint] determinism_check: expected "default" or "none", got {determinism_check!r}.')
    return _C.checkpoint(
        preserve_rng_state=preserve_rng_state,
        determinism_check=determinism_check,
        early_stop=early_stop,
        policy=policy,
        _any_output=True,
        **({"_op_site": _op_site} if debug else {}),
    )


_plain_builder = functools.cache(_builder)


def _with_contexts(function, forward_context, recompute_context):
    next_context = forward_context

    def run(*args, **kwargs):
        nonlocal next_context
        context, next_context = next_context, recompute_context
        with context:
            return function(*args, **kwargs)

    return run


def _selective_policy(context_fn):
    """Returns (policy, None) for a context_fn of selective checkpointing, and (None, contexts) for any other context_fn."""
    stock_fn = stock.create_selective_checkpoint_contexts
    if isinstance(context_fn, functools.partial) and context_fn.func is stock_fn and context_fn.args:
        return context_fn.args[0], None
    contexts = context_fn()
    if not (isinstance(contexts, tuple) and len(contexts) == 2):
        raise TypeError(f"[torch_checkpoint] context_fn: expected it to return two context managers, got {contexts!r}.")
    if isinstance(contexts[0], stock._CachingTorchDispatchMode):
        return contexts[0].policy_fn, None
    return None, contexts


@typing.overload
def torch_checkpoint(function: typing.Callable[..., _R], *args: typing.Any, **options: typing.Any) -> _R: ...
@typing.overload
def torch_checkpoint(**options: typing.Any) -> typing.Callable[[typing.Callable[..., _R]], typing.Callable[..., _R]]: ...
@_C._make_entry
def torch_checkpoint(
    function: typing.Callable[..., typing.Any] | None = None,
    *args: typing.Any,
    use_reentrant: bool | None = None,
    preserve_rng_state: bool = True,
    context_fn: typing.Callable[[], typing.Any] | None = stock.noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    respect_saved_tensors_hooks: bool | None = None,
    **kwargs: typing.Any,
) -> typing.Any:
    """torch.utils.checkpoint.checkpoint(function, *args, **kwargs) on remat; without a function, a decorator.

    Returns what `function` returns, with leaves of any type. `use_reentrant` is accepted and ignored, since one
    implementation covers both of torch's. With `debug`, a ReplayMismatch lists the ops of forward and replay, each
    with the lines of Python that called it; this is slow. Without `debug` the error names the first op that differs.
    `context_fn` with torch's create_selective_checkpoint_contexts becomes a policy of the region; other contexts are
    entered around `function`, the first in the forward, the second in the replay. set_checkpoint_early_stop() and
    set_checkpoint_debug_enabled() override `early_stop` and `debug`. `respect_saved_tensors_hooks` is accepted and
    ignored, since hooks around a region get what its policy keeps. Gradients, buffers and random streams are bitwise those
    of function(*args, **kwargs).
    """
    options = dict(
        use_reentrant=use_reentrant,
        preserve_rng_state=preserve_rng_state,
        context_fn=context_fn,
        determinism_check=determinism_check,
        debug=debug,
        early_stop=early_stop,
    )
    if respect_saved_tensors_hooks is not None:  # torch.utils.checkpoint has it since 2.14
        options["respect_saved_tensors_hooks"] = respect_saved_tensors_hooks
    if function is not None or args:
        return _run(function, args, kwargs, options)
    if kwargs:
        raise TypeError(
            f"[torch_checkpoint] {', '.join(kwargs)}: expected options only, where no function is given, got arguments of one."
        )
    return functools.partial(_decorated, options)


def _decorated(options, function):
    """Returns an ordinary Python function, which binds to an instance, so that methods can be decorated."""

    @functools.wraps(function)
    def checkpointed(*args, **kwargs):
        return _run(function, args, kwargs, options)

    return checkpointed


def _run(function, args, kwargs, options):
    if torch._guards.TracingContext.try_get() is not None:  # a compiler is tracing a checkpoint of its graph
        return stock.checkpoint.__wrapped__(function, *args, **options, **kwargs)
    context_fn = options["context_fn"]
    early = _unless(stock._enable_checkpoint_early_stop, options["early_stop"])
    debug = _unless(stock._checkpoint_debug_enabled, options["debug"])
    chosen = (bool(options["preserve_rng_state"]), options["determinism_check"], early, debug)
    if context_fn is stock.noop_context_fn or context_fn is None:
        return _plain_builder(*chosen)(function)(*args, **kwargs)
    policy, contexts = _selective_policy(context_fn)
    if contexts:
        function = _with_contexts(function, *contexts)
    return _builder(*chosen, policy)(function)(*args, **kwargs)


def _unless(override, value):
    return bool(value if override is None else override)


# torch.utils.checkpoint.checkpoint is a wrapper that calls the function it finds under this attribute of the wrapped function,
# and sets the attribute at its first call. Whoever imported the name has the wrapper, so setting the attribute affects them too,
# and the wrapper stays the same object.
_TARGET = "__dynamo_disable"
_ABSENT = object()


def _stock_function():
    below = getattr(stock.checkpoint, "__wrapped__", None)
    code = getattr(stock.checkpoint, "__code__", None)
    if below is None or code is None or _TARGET not in code.co_consts:
        raise NotImplementedError(
            "[patch_torch_checkpoint] torch.utils.checkpoint.checkpoint: expected the function of "
            f"torch {minor(TORCH_VERSION)}, got {stock.checkpoint!r} of torch {torch.__version__} or of another "
            "patch. Take that off, or call torch_checkpoint."
        )
    return below


class _Patch:
    """A patch, undone by undo() or at the end of the with block. Patches nest; the last one must be undone first."""

    _stack = []

    def __init__(self, replacement: typing.Callable[..., typing.Any] | None = None) -> None:
        """Uses `replacement`, else the replacement of the patch around this one, else torch_checkpoint."""
        on_first_use()
        outer = _Patch._stack[-1]._replacement if _Patch._stack else torch_checkpoint
        self._replacement = replacement or outer
        self._function = _stock_function()
        self._before = getattr(self._function, _TARGET, _ABSENT)
        setattr(self._function, _TARGET, self._replacement)
        _Patch._stack.append(self)

    def undo(self) -> None:
        """Restores torch's function or that of an outer patch. A second call does nothing."""
        if self not in _Patch._stack:
            return
        if _Patch._stack[-1] is not self:
            raise RuntimeError(
                "[patch_torch_checkpoint] undo: expected the last patch to be undone first, got an "
                "earlier one. Undo them in the opposite order."
            )
        _Patch._stack.pop()
        if self._before is _ABSENT:
            delattr(self._function, _TARGET)
        else:
            setattr(self._function, _TARGET, self._before)

    def __enter__(self) -> "_Patch":
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()


@contextlib.contextmanager
def checkpoints_on_remat():
    """Runs checkpoints on remat, so that a measurement sees and refuses them. If patching fails, torch's checkpoint stays."""
    try:
        patch = _Patch()
    except NotImplementedError:
        patch = contextlib.nullcontext()
    with patch:
        yield


def patch_torch_checkpoint() -> _Patch:
    """Makes torch.utils.checkpoint.checkpoint, and checkpoint_sequential, run on remat.

    Also affects code that imported the name before or holds it in a functools.partial (transformers, timm, FSDP's
    checkpoint_wrapper). Takes effect at once; undone by undo() of the result, or as a context manager. Code compiled by
    torch.compile keeps torch's checkpoint.
    """
    return _Patch()
