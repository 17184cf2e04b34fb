# SPDX-License-Identifier: Apache-2.0
"""One exception for each status of the library, under one base for each class: what the caller should do next.

======================  =================================================================
base                    what to do
======================  =================================================================
:class:`ProgramError`   fix the program
:class:`MachineError`   look at this machine: memory, files, values
:class:`StepError`      ``reset_iter_state`` on every rank, then go on
:class:`GroupError`     restart the group: later calls repeat the error
:class:`RecreateError`  choose another backend, or create anew in this process
:class:`Internal`       a defect of tpfsdp: report it
======================  =================================================================
"""

from __future__ import annotations

from . import capi


class TpfsdpError(RuntimeError):
    """What went wrong (the text), who did it, and what to do next. Numbers are -1 and strings "" where unknown."""

    status: int = -1
    """The library's code, ``capi.ERR_...``."""
    error_class: int = capi.ERROR_CLASS_UNKNOWN
    rank: int = -1
    """The rank at fault, in ``group``."""
    operation: str = ""
    unit: str = ""
    """The sharded unit, module or parameter."""
    group: str = ""
    sequence: int = -1
    """Number of the collective in its group."""
    backend: str = ""
    backend_code: int = -1
    is_sticky: bool = False
    """True where the group repeats this error for ever."""


class ProgramError(TpfsdpError):
    """A mistake in the program."""

    error_class = capi.ERROR_CLASS_PROGRAM


class InvalidArgument(ProgramError, ValueError):
    status = capi.ERR_INVALID_ARGUMENT


class InvalidHandle(ProgramError):
    """An object that was closed, is None, or is of another kind or library."""

    status = capi.ERR_INVALID_HANDLE


class NotFound(ProgramError, LookupError):
    status = capi.ERR_NOT_FOUND


class InvalidState(ProgramError):
    """A legal call at the wrong moment; the text says what to do first."""

    status = capi.ERR_STATE


class Busy(ProgramError):
    """Another thread, or a callback of this one, is inside the same tree."""

    status = capi.ERR_BUSY


class AbiMismatch(ProgramError):
    status = capi.ERR_ABI


class Unsupported(ProgramError, NotImplementedError):
    status = capi.ERR_UNSUPPORTED


class MachineError(TpfsdpError):
    """This machine, or its data."""

    error_class = capi.ERROR_CLASS_MACHINE


class OutOfMemory(MachineError, MemoryError):
    status = capi.ERR_OUT_OF_MEMORY


class IoFailure(MachineError, OSError):
    status = capi.ERR_IO


class Corrupt(MachineError):
    status = capi.ERR_CORRUPT


class NonFinite(MachineError, ArithmeticError):
    status = capi.ERR_NON_FINITE


class StepError(TpfsdpError):
    """The step is lost: ``reset_iter_state`` on every rank."""

    error_class = capi.ERROR_CLASS_STEP


class CallbackFailed(StepError):
    """A callback failed. Its own exception is raised instead, with this one as its cause, where there is one."""

    status = capi.ERR_CALLBACK


class Remote(StepError):
    """A peer failed; ``rank`` and its text are carried."""

    status = capi.ERR_REMOTE


class Mismatch(StepError):
    """The ranks do not agree; each rank's value is in the text."""

    status = capi.ERR_MISMATCH


class Cancelled(StepError):
    """An interrupt ended a wait."""

    status = capi.ERR_CANCELLED


class GroupError(TpfsdpError):
    """The group is lost: later calls on it repeat the error."""

    error_class = capi.ERROR_CLASS_GROUP


class Timeout(GroupError, TimeoutError):
    status = capi.ERR_TIMEOUT


class PeerLost(GroupError):
    """A rank died, stopped or left."""

    status = capi.ERR_PEER_LOST


class Aborted(GroupError):
    """This or another rank called an abort function."""

    status = capi.ERR_ABORTED


class BackendFailed(GroupError):
    status = capi.ERR_BACKEND


class RecreateError(TpfsdpError):
    """Choose another, or create anew."""

    error_class = capi.ERROR_CLASS_RECREATE


class BackendUnavailable(RecreateError):
    """No backend would do; the text has the reason for each candidate."""

    status = capi.ERR_BACKEND_UNAVAILABLE


class Forked(RecreateError):
    """The object was born before a fork; a new :class:`~tpfsdp.Context` works."""

    status = capi.ERR_FORKED


class Internal(TpfsdpError):
    """A defect of tpfsdp: please report it."""

    status = capi.ERR_INTERNAL
    error_class = capi.ERROR_CLASS_REPORT


_BASES = (ProgramError, MachineError, StepError, GroupError, RecreateError)
_BY_STATUS: dict[int, type[TpfsdpError]] = {kind.status: kind for base in _BASES for kind in base.__subclasses__()}
_BY_STATUS[Internal.status] = Internal
# For a code that only a newer library knows.
_BY_CLASS: dict[int, type[TpfsdpError]] = {base.error_class: base for base in (*_BASES, Internal)}


def _make(
    message: str,
    status: int,
    error_class: int,
    rank: int,
    backend_code: int,
    sequence: int,
    is_sticky: int,
    operation: str,
    unit: str,
    group: str,
    backend: str,
    cause: BaseException | None,
) -> TpfsdpError:
    kind = _BY_STATUS.get(status) or _BY_CLASS.get(error_class, TpfsdpError)
    error = kind(message)
    error.status, error.error_class, error.rank, error.backend_code = status, error_class, rank, backend_code
    error.sequence, error.is_sticky, error.operation = sequence, bool(is_sticky), operation
    error.unit, error.group, error.backend = unit, group, backend
    if cause is not None:
        error.__cause__ = cause
    return error


capi.set_error_factory(_make)
