# SPDX-License-Identifier: BSD-3-Clause

"""Interfaces that users implement: places for tensors, state hooks, what pack functions are told."""

import abc
import enum
import typing

import torch

from . import _C


class SavedTensorKind(enum.Enum):
    """What a tensor is that pack has been given."""

    CHECKPOINT_INPUT = 0
    """A tensor argument of a region."""
    BACKWARD = 1
    """Saved by autograd: outside of regions, or in a SAVE call."""
    SAVE_OUTPUT = 2
    """A result of a SAVE call that code outside of the call reads."""


class SavedTensorInfo(typing.NamedTuple):
    """What current_saved_tensor_info() returns."""

    kind: SavedTensorKind
    region: str | None
    """The region's name; None outside of regions and for one without a name."""
    call: str | None
    """The SAVE call; None for a region's arguments."""
    context: typing.Any
    """What capture_context returned; None without one."""


def current_saved_tensor_info() -> SavedTensorInfo:
    """What the tensor is that pack has been given: a SavedTensorInfo.

    To be called by the pack function of saved_tensors_hooks, on its thread; raises RuntimeError
    elsewhere.
    """
    kind, *rest = _C._saved_tensor_info()
    return SavedTensorInfo(SavedTensorKind(kind), *rest)


@typing.runtime_checkable
class RecomputeStateHook(typing.Protocol):
    """State outside of a region that its replay must find as the forward found it.

    The forward calls snapshot() at entry and after each SAVE call. A replay calls snapshot() for the
    present, restore() with the entry's state, restore() with the state after each SAVE call that it
    leaves out, and restore() with the present when it has ended, by an exception too. Restoring a
    state must do so whatever came before. Errors of both reach the caller.
    """

    def snapshot(self) -> typing.Any: ...

    def restore(self, state: typing.Any, /) -> None: ...


class OffloadStore(abc.ABC):
    """Where OFFLOAD calls keep what backward needs. Several regions and threads may use one.

    Any object with put() will do; this class is for those who want to say so. One whose tickets give back approximations
    has is_exact = False; regions take it with determinism_check="none" only.
    """

    is_exact: bool = True

    @abc.abstractmethod
    def put(self, tensor: torch.Tensor) -> typing.Any:
        """Puts a detached tensor away, which the caller then drops; returns a ticket.

        ticket.get() returns an equal tensor on the same device, with the same shape, strides and
        dtype; called in backward, on any thread, more than once if the graph is kept. The ticket is
        dropped when the place is free again. Errors of both reach the caller.
        """


OffloadStore.register(_C.CppOffloadStore)
