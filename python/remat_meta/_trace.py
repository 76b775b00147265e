# SPDX-License-Identifier: BSD-3-Clause

"""Collects the named calls of forwards."""

import contextlib
import contextvars
import functools
import typing

from . import _C
from ._policy import CheckpointPolicy

_P = typing.ParamSpec("_P")
_R = typing.TypeVar("_R")


class OpTrace(typing.NamedTuple):
    """A named call."""

    name: str
    """The call's name, with the prefixes of the name scopes around it."""
    policy: CheckpointPolicy

    @property
    def recompute(self) -> bool:
        """True for RECOMPUTE."""
        return self.policy is CheckpointPolicy.RECOMPUTE


class ScopeTrace(typing.NamedTuple):
    """A call of a function that trace_scope() wrapped."""

    name: str
    metadata: str | None
    entries: "list[OpTrace | ScopeTrace]"


class RematTrace:
    """The calls and scopes that collect_trace() has collected so far."""

    def __init__(self):
        # If the lambda referred to self, only the garbage collector could free this trace and its CallTrace.
        self._key = key = object()
        self._calls = _C.CallTrace(lambda: getattr(_active.get(), "_key", None) is key)

    @property
    def entries(self) -> list[OpTrace | ScopeTrace]:
        """Calls and scopes in order."""
        return _entries(self._calls.entries())

    def format(self) -> str:
        """Returns a text: a header, then "name: save", "name: recompute" or "name: offload" for each call,
        indented below "name [metadata]" of its scopes."""
        return str(self._calls)


def _entries(found):
    return [
        OpTrace(name, second) if inner is None else ScopeTrace(name, second or None, _entries(inner))
        for name, second, inner in found
    ]


_active: contextvars.ContextVar[RematTrace | None] = contextvars.ContextVar("remat_trace", default=None)


@contextlib.contextmanager
def collect_trace() -> typing.Iterator[RematTrace]:
    """with collect_trace() as trace: collects the named calls of regions' forwards into `trace`.

    Only calls of the current context (thread, asyncio task) are collected, without those of replays and
    without SAVE calls inside SAVE calls. trace.entries and trace.format() may be used inside the block and
    after it. If blocks nest, the innermost one collects.
    """
    trace = RematTrace()
    token = _active.set(trace)
    try:
        yield trace
    finally:
        _active.reset(token)
        trace._calls.stop()


class _Scoped(typing.Generic[_P, _R]):
    def __init__(self, function, name, metadata):
        functools.update_wrapper(self, function)
        self._function, self._name, self._metadata = function, name, metadata

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        trace = _active.get()
        if trace is None or not trace._calls.begin_scope(self._name, self._metadata or ""):
            return self._function(*args, **kwargs)
        try:
            return self._function(*args, **kwargs)
        finally:
            trace._calls.end_scope()

    def __get__(self, instance, owner=None):
        return self if instance is None else functools.partial(self, instance)


def trace_scope(function: typing.Callable[_P, _R], name: str, *, metadata: str | None = None) -> typing.Callable[_P, _R]:
    """Returns `function` wrapped so that collect_trace() shows its named calls below `name`, followed by [metadata].

    Nothing else changes: calls keep their names. Raises RuntimeError if `function` is no function or if `name` or
    `metadata` is no string, ValueError if one of them is empty.
    """
    if not callable(function):
        raise RuntimeError(
            f"[trace_scope] function: trace_scope expects a function as its first argument, got {_C._type_of(function)}."
        )
    for what, text in (("name", name), ("metadata", metadata)):
        if what == "metadata" and text is None:
            continue
        if not isinstance(text, str):
            raise RuntimeError(f"[trace_scope] {what}: must be a string, got {_C._type_of(text)}.")
        if not text:
            raise ValueError(f"[trace_scope] {what}: must be non-empty, got an empty one.")
    return _Scoped(function, name, metadata)
