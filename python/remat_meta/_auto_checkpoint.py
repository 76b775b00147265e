# SPDX-License-Identifier: BSD-3-Clause

"""auto_checkpoint(): runs the steps of a model within a memory budget."""

import contextlib
import copy
import functools
import inspect
import logging
import math
import numbers
import os
import sys
import types
import typing
import warnings
import weakref

import torch

from . import _C, _agreement, _plan_agreement
from ._C import MemoryPlan, OffloadEngine, checkpoint
from ._install import on_first_use
from ._plan_agreement import PlanAgreement
from ._profile import let_profilers_start, named_by_module
from ._torch_checkpoint import checkpoints_on_remat

_F = typing.TypeVar("_F", bound=typing.Callable[..., typing.Any])
_NO_FUNCTION: typing.Any = object()  # value of fn when auto_checkpoint() is used as a decorator

_logger = logging.getLogger("remat_meta")

# Each module's _AutoCheckpointed, kept here because others may wrap module.forward again, as accelerate does.
_by_module = weakref.WeakKeyDictionary()


def _run_eagerly(run, args, kwargs):
    return _C._run_eagerly(run, args, kwargs)


# Makes a graph break with a reason. torch.compiler.disable() would do so too, but takes a second to load.
_frames = torch._C._dynamo.eval_frame
_frames.set_code_exec_strategy(
    _run_eagerly.__code__, _frames._FrameExecStrategy(_frames._FrameAction.SKIP, _frames._FrameAction.DEFAULT)
)
_run_eagerly._torchdynamo_disable = True
_run_eagerly._torchdynamo_disable_msg = "remat.auto_checkpoint(): a step within a budget runs op by op"


class _AutoCheckpointed:
    """Wraps a function, or a module's forward, so that its steps fit a budget."""

    def __init__(self, fn, module, options):
        self._fn = fn  # None: the forward of the module's class
        self._module = module
        self._options = options
        name, budget = options["name"], options["memory_budget"]
        self._agreement = PlanAgreement(name, budget, module)
        self._planned = _C._AutoCheckpoint(
            name, budget, options["plan"], options["steps"], _logger.info, _warn, self._agreement.agree, options["offload"]
        )
        let_profilers_start()
        self._may_be_lazy = module is not None
        if module is not None:
            _by_module[module] = weakref.ref(self)
        # Trainers inspect the signature to see which arguments the model takes.
        functools.update_wrapper(self, self._function())

    def _function(self):
        return types.MethodType(type(self._module).forward, self._module) if self._fn is None else self._fn

    def __call__(self, *args, **kwargs):
        if not torch.is_grad_enabled():
            return self._call_plainly(args, kwargs)
        return _run_eagerly(self._run_step, args, kwargs)

    def _call_plainly(self, args, kwargs):
        return type(self._module).forward(self._module, *args, **kwargs) if self._fn is None else self._fn(*args, **kwargs)

    def _run_step(self, *args, **kwargs):
        is_traced = torch.jit.is_tracing() or torch.compiler.is_exporting()
        is_transformed = torch._C._functorch.peek_interpreter_stack() is not None
        if is_traced or is_transformed or torch.is_inference_mode_enabled() or self._is_lazy():
            return self._call_plainly(args, kwargs)
        settings = {"budget": self._options["memory_budget"], "offload": "a store" if self._options["offload"] else "none"}
        _agreement.meet(f"auto_checkpoint '{self._options['name']}'", settings)
        self._agreement.begin_step()
        result = None

        def forward(cuts, recording):
            nonlocal result
            result = self._function()(*args, **kwargs) if cuts is None else self._run_region(cuts, recording, args, kwargs)

        self._planned.run(forward, args, kwargs, self._module is not None and self._module.training)
        return result

    def _run_region(self, cuts, recording, args, kwargs):
        name, store = self._options["name"], self._options["offload"] if cuts.moves else None
        region = checkpoint(replay="tape", region_name=name, _cuts=cuts, offload_store=store, _any_output=True)(self._function())
        is_measured = recording is not None
        names = named_by_module(recording, self._module) if is_measured else contextlib.nullcontext()
        with names, checkpoints_on_remat() if is_measured and cuts.is_unknown else contextlib.nullcontext():
            try:
                return region(*args, **kwargs)
            except NotImplementedError as error:
                if not str(error).startswith("["):
                    raise
                raise NotImplementedError(f"{error}\n{self._planned.advice()}") from error

    def _is_lazy(self):
        """Returns True until a plain call has given shapes to the module's lazy parameters."""
        if self._may_be_lazy:
            self._may_be_lazy = any(torch.nn.parameter.is_lazy(p) for p in self._module.parameters())
        return self._may_be_lazy

    def __get__(self, instance, owner=None):
        """Binds as a method when used as a method's decorator."""
        return self if instance is None else types.MethodType(self, instance)

    # A copy of a model gets measurements of its own.
    def __deepcopy__(self, memo):
        copied = _AutoCheckpointed(copy.deepcopy(self._fn, memo), copy.deepcopy(self._module, memo), self._options)
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol):
        found = sys.modules.get(getattr(self, "__module__", None))
        for part in getattr(self, "__qualname__", "").split("."):
            found = getattr(found, part, None)
        # A function at the top level of a Python module is pickled by its name, as functions are that are not decorated.
        return self.__qualname__ if found is self else super().__reduce_ex__(protocol)

    def __getstate__(self):
        return self._fn, self._module, self._options

    def __setstate__(self, state):
        self.__init__(*state)


def _warn(line):
    warnings.warn(line, stacklevel=4)


def _budget_text(memory_budget, of_peak, fraction, device_bytes):
    given = {"memory_budget": memory_budget, "of_peak": of_peak, "fraction": fraction, "device_bytes": device_bytes}
    given = {name: value for name, value in given.items() if value is not None}
    if len(given) > 1:
        raise ValueError(f"[auto_checkpoint] expected one budget, got {' and '.join(given)}. Leave the others out.")
    for name in ("of_peak", "fraction"):
        share = given.get(name)
        if share is None:
            continue
        if isinstance(share, bool) or not isinstance(share, numbers.Real):
            raise TypeError(f"[auto_checkpoint] {name}: expected a number, got {type(share).__name__}.")
        share = float(share)
        if not (0 <= share <= 1) or (name == "of_peak" and share == 0):
            least = "more than 0, and at most 1" if name == "of_peak" else "0 to 1"
            raise ValueError(f"[auto_checkpoint] {name}: expected {least}, got {share}.")
        return f"{100 * share!r}%" if name == "of_peak" else f"fraction:{share!r}"
    for name in ("memory_budget", "device_bytes"):
        size = given.get(name)
        if size is None:
            continue
        if isinstance(size, bool) or not isinstance(size, (numbers.Integral, str)):
            raise TypeError(f'[auto_checkpoint] {name}: expected bytes or a text like "8GB", got {_shown(size)}')
        text = size if isinstance(size, str) else f"{int(size)}B"
        return text if name == "memory_budget" else f"device:{text}"
    return ""


def _shown(size):
    """Describes a budget of the wrong type, and says how to write it."""
    if not isinstance(size, float):
        return f"{type(size).__name__}."
    if 0 < size <= 1:
        return f'the float {size}. Write memory_budget="{100 * size:g}%", or of_peak={size}.'
    return f"the float {size}." + (f" Write int({size:g})." if 1 < size < math.inf else "")


def _path_text(plan):
    if plan is not None and not isinstance(plan, (str, os.PathLike)):
        raise TypeError(f"[auto_checkpoint] plan: expected a path, got {type(plan).__name__}.")
    return "" if plan is None else os.fspath(plan)


def _find_compiled(fn):
    """Returns a text for the error if torch.compile has compiled fn or a module in fn, else None."""
    if not isinstance(fn, torch.nn.Module):
        return "a function" if hasattr(fn, "_torchdynamo_orig_callable") else None
    for path, module in fn.named_modules():
        is_compiled = type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        if is_compiled or hasattr(module.forward, "_torchdynamo_orig_callable"):
            return f"module '{path}'" if path else "a module"
    return None


def _check_function(fn):
    called = fn.forward if isinstance(fn, torch.nn.Module) else fn
    if not inspect.isroutine(called) and not isinstance(called, functools.partial):
        called = type(called).__call__ if callable(called) else None
    got, advice = None, "Pass what computes."
    if not callable(fn):
        got, advice = type(fn).__name__, 'Write auto_checkpoint(model, "60%"), or @auto_checkpoint(memory_budget="60%").'
    elif isinstance(fn, type):
        got, advice = f"the class {fn.__name__}", f"Pass an instance: {fn.__name__}(...)."
    elif inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        got = "a coroutine function"
    elif inspect.isgeneratorfunction(called):
        got = "a generator function"
    if got is not None:
        raise TypeError(f"[auto_checkpoint] fn: expected a module, or a function that returns its results, got {got}. {advice}")


@typing.overload
def auto_checkpoint(
    fn: _F,
    memory_budget: int | str | None = None,
    *,
    of_peak: float | None = None,
    fraction: float | None = None,
    device_bytes: int | str | None = None,
    plan: str | os.PathLike[str] | None = None,
    name: str | None = None,
    steps: int = 3,
    offload: OffloadEngine | None = None,
) -> _F: ...
@typing.overload
def auto_checkpoint(
    *,
    memory_budget: int | str | None = None,
    of_peak: float | None = None,
    fraction: float | None = None,
    device_bytes: int | str | None = None,
    plan: str | os.PathLike[str] | None = None,
    name: str | None = None,
    steps: int = 3,
    offload: OffloadEngine | None = None,
) -> typing.Callable[[_F], _F]: ...
def auto_checkpoint(
    fn: typing.Any = _NO_FUNCTION,
    memory_budget: int | str | None = None,
    *,
    of_peak: float | None = None,
    fraction: float | None = None,
    device_bytes: int | str | None = None,
    plan: str | os.PathLike[str] | None = None,
    name: str | None = None,
    steps: int = 3,
    offload: OffloadEngine | None = None,
) -> typing.Any:
    """Makes the steps of a model, or of any function, fit a memory budget; gradients stay bitwise the same.

    For a module, wraps its forward and returns the module, whose class and state_dict stay as they are. Returns any other
    callable wrapped. Without fn, this is a decorator: @auto_checkpoint(memory_budget="60%"). Call the result as before, in
    grad mode, with one backward for each call. Calls without grad mode are plain.

    Give one budget; the default is the environment variable REMAT_MEMORY_BUDGET.

    memory_budget: bytes beyond what is alive when the step begins (an int or "8GB"), or "60%" of the peak without remat.
    of_peak: a share of the peak without remat, as a number: 0.6 for 60 %.
    fraction: from 0 (the least possible) to 1 (nothing is recomputed).
    device_bytes: all that weights, gradients, optimizer and step may take together.

    The first `steps` steps are measured as they run, with most tensors recomputed. Then a plan is made, within a second for
    most models. The first step may exceed the budget, because nothing is known of its ops yet. fn is called exactly once in
    each step. `plan` is the path of a file. If the file exists, its plan is used and nothing is measured; otherwise the plan is
    saved there.
    `offload` is a store of remat.offload() with a max_leaving_bytes, to which plans may move kept tensors.

    Raises ValueError if no plan fits; the message names the least budget that would do, and what prevents a lower one. Raises
    NotImplementedError, with the op's name, if no tape can replay an op, and for functions that torch.compile has compiled.
    """
    if fn is _NO_FUNCTION:
        budget = dict(memory_budget=memory_budget, of_peak=of_peak, fraction=fraction, device_bytes=device_bytes)
        return functools.partial(auto_checkpoint, **budget, plan=plan, name=name, steps=steps, offload=offload)
    _check_function(fn)
    if name is not None and not isinstance(name, str):
        raise TypeError(f"[auto_checkpoint] name: expected a text, got {type(name).__name__}.")
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise TypeError(f"[auto_checkpoint] steps: expected a number of steps, got {type(steps).__name__}.")
    if not 1 <= steps <= 1000:
        raise ValueError(f"[auto_checkpoint] steps: expected 1 to 1000, got {steps}.")
    options = {
        "name": name or (type(fn).__name__ if isinstance(fn, torch.nn.Module) else getattr(fn, "__qualname__", "")),
        "memory_budget": _budget_text(memory_budget, of_peak, fraction, device_bytes),
        "plan": _path_text(plan),
        "steps": steps,
        "offload": offload,
    }
    if offload is not None and not isinstance(offload, OffloadEngine):
        raise TypeError(
            f"[auto_checkpoint] offload: expected a store of remat.offload(), got {type(offload).__name__}. Give "
            'remat.offload("host", max_leaving_bytes=..., prefetch_bytes=...): only its copies can be planned for.'
        )
    compiled = _find_compiled(fn)
    if compiled is not None:
        raise NotImplementedError(
            f"[auto_checkpoint] '{options['name']}': expected what runs op by op, got {compiled} of torch.compile, of which "
            "no tape sees the ops. Leave torch.compile out, or set torch._functorch.config.activation_memory_budget."
        )
    on_first_use()
    _plan_agreement.install()
    if not isinstance(fn, torch.nn.Module):
        return _AutoCheckpointed(fn, None, options)
    module = fn
    while isinstance(module, torch.nn.parallel.DistributedDataParallel):
        module = module.module  # its forward is the step; the wrapper around it waits for other ranks' buffers and gradients
    forward = vars(module).get("forward")
    if isinstance(forward, _AutoCheckpointed):
        forward = forward._fn
    module.forward = _AutoCheckpointed(forward, module, options)
    return fn


def _of_module(module):
    known = _by_module.get(module)
    return known and known()


def is_auto_checkpointed(module):
    return _of_module(module) is not None


def _find(fn):
    while isinstance(fn, torch.nn.Module):
        planned = _of_module(fn)
        if planned is not None:
            return planned
        of_class = vars(type(fn)).get("forward")
        if isinstance(of_class, _AutoCheckpointed):
            return of_class
        fn = getattr(fn, "module", None)  # DistributedDataParallel's module
    fn = getattr(fn, "__func__", fn)  # a method's function
    return fn if isinstance(fn, _AutoCheckpointed) else None


def memory_plan(fn: typing.Callable[..., typing.Any]) -> MemoryPlan:
    """Returns the MemoryPlan by which a model or function of auto_checkpoint() runs.

    Raises ValueError for any other function, RuntimeError while its first steps are measured.
    """
    found = _find(fn)
    if found is None:
        raise ValueError(
            f"[auto_checkpoint] memory_plan: expected a model or function of auto_checkpoint(), got {type(fn).__name__}. "
            "Call auto_checkpoint() on it first."
        )
    plan = found._planned.plan()
    if plan is None:
        reason = found._planned.why_no_plan().rstrip(".")
        raise RuntimeError(f"[auto_checkpoint] memory_plan: expected a plan, got none yet: {reason}.")
    return plan
