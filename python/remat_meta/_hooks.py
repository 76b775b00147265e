# SPDX-License-Identifier: BSD-3-Clause

"""Interfaces that users implement: stores, state hooks, and the information for pack functions."""

import abc
import enum
import typing

import torch

from . import _C


class SavedTensorKind(enum.Enum):
    """The kind of tensor that pack receives."""

    CHECKPOINT_INPUT = 0
    """A tensor argument of a region."""
    BACKWARD = 1
    """A tensor that autograd saved outside regions or in a SAVE call."""
    SAVE_OUTPUT = 2
    """A result of a SAVE call that code outside the call reads."""


class SavedTensorInfo(typing.NamedTuple):
    """The result of current_saved_tensor_info()."""

    kind: SavedTensorKind
    region: str | None
    """The region's name; None outside regions and for a region without a name."""
    call: str | None
    """The SAVE call; None for a region's arguments."""
    context: typing.Any
    """The result of capture_context; None without one."""


def current_saved_tensor_info() -> SavedTensorInfo:
    """Describes the tensor that pack has received.

    Call it in the pack function of saved_tensors_hooks, on its thread. Raises RuntimeError elsewhere.
    """
    kind, *rest = _C._saved_tensor_info()
    return SavedTensorInfo(SavedTensorKind(kind), *rest)


@typing.runtime_checkable
class RecomputeStateHook(typing.Protocol):
    """State outside a region that its replay must find as the forward found it.

    The forward calls snapshot() at entry and after each SAVE call. A replay calls snapshot() for the
    current state, restore() with the entry's state, restore() with the state after each SAVE call that
    it leaves out, and finally restore() with the current state, also after an exception. restore()
    must work whatever the state is. Errors of both functions reach the caller.
    """

    def snapshot(self) -> typing.Any: ...

    def restore(self, state: typing.Any, /) -> None: ...


class OffloadStore(abc.ABC):
    """Keeps what backward needs of OFFLOAD calls. Several regions and threads may share a store.

    Any object with put() works; this class is for explicit subclassing. A store whose tickets return approximations has
    is_exact = False; regions take it with determinism_check="none" only.
    """

    is_exact: bool = True

    @abc.abstractmethod
    def put(self, tensor: torch.Tensor) -> typing.Any:
        """Stores a detached tensor, which the caller does not keep, and returns a ticket.

        ticket.get() returns an equal tensor on the same device, with the same shape, strides and dtype. It
        is called in backward, on any thread, and more than once if the graph is retained. The ticket is
        freed when the tensor is no longer needed. Errors of both functions reach the caller.
        """


OffloadStore.register(_C.CppOffloadStore)
