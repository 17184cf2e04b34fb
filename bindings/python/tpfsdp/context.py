# SPDX-License-Identifier: Apache-2.0
"""One rank: how it joins the others, and how it ends."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import capi
from ._handle import Owner, ask, known, options, read_blob, shared, snapshot
from .errors import InvalidState
from .group import Group
from .trace import Counters, TraceEvent, read_event

if TYPE_CHECKING:
    from typing import Self

    LogFunction = Callable[[int, int, str, str], object]
    ListeningFunction = Callable[[str], object]

_current: contextvars.ContextVar[Context] = contextvars.ContextVar("tpfsdp_context")


def current_context() -> Context:
    """The context of this thread or task: set by :func:`run_ranks`, ``with Context()`` and :meth:`Context.use`.

    Raises:
        InvalidState: there is none. A new thread has none until it enters one.
    """
    context = _current.get(None)
    if context is None:
        raise InvalidState("there is no current context: use run_ranks(n, function) or `with tpfsdp.Context():`")
    return context


def _look_at_signals(args: Any) -> None:
    """Asked by the library every 100 ms of a wait: entering Python code is what runs pending signal handlers, so
    Ctrl-C raises KeyboardInterrupt here, and that ends the wait."""


def _log_callback(log: LogFunction) -> Callable[[Any], None]:
    def call(record: Any) -> None:
        log(record.level, record.rank, record.component, record.message)

    return call


def _listening_callback(listening: ListeningFunction) -> Callable[[Any], None]:
    def call(record: Any) -> None:
        listening(record.store)

    return call


def make_options(
    *,
    rank: int | None = None,
    world_size: int | None = None,
    store: str | None = None,
    backend: str | None = None,
    name: str | None = None,
    arrival_timeout_ms: int = 0,
    progress_timeout_ms: int = 0,
    join_timeout_ms: int = 0,
    event_capacity: int = 0,
    memory_budget_bytes: int = 0,
    log: LogFunction | None = None,
    log_level: int = capi.LOG_DEFAULT,
    listening: ListeningFunction | None = None,
) -> Any:
    """The record of :class:`Context` and :func:`run_ranks`. Callbacks in it belong to the call it is given to."""
    return options(
        capi.context_options(),
        rank=rank or 0,
        world_size=world_size or 0,
        store=store,
        backend=backend,
        name=name,
        arrival_timeout_ms=arrival_timeout_ms,
        progress_timeout_ms=progress_timeout_ms,
        join_timeout_ms=join_timeout_ms,
        event_capacity=event_capacity,
        memory_budget_bytes=memory_budget_bytes,
        log_level=log_level,
        log=capi.log_callback(_log_callback(log)) if log is not None else None,
        interrupt=capi.interrupt_callback(_look_at_signals),
        listening=capi.listening_callback(_listening_callback(listening)) if listening is not None else None,
    )


class Context(Owner):
    """One rank of a job. PyTorch: ``init_process_group``.

    Without arguments rank, world and store come from the launcher (``tpfsdp-run``, ``torchrun``, ``mpirun``,
    ``srun``), and without one it is a world of one.
    As a context manager it is the current context, ends in order, and aborts the other ranks when the block raises.

    Args:
        rank, world_size: this rank among all.
        store: where ranks meet: ``"local:NAME"`` for threads of one process, ``"file:DIR"`` (a new directory for each
            job) or ``"tcp:HOST:PORT"`` (with TPFSDP_TOKEN set) for processes; None: as the launcher says.
        backend: ``"threads"`` or ``"shm"``; None: the best that can run here.
        name: of the default group, in messages.
        arrival_timeout_ms, progress_timeout_ms, join_timeout_ms: 0 is the default, -1 no limit.
        event_capacity: events kept for :meth:`events`; 0: counters only.
        memory_budget_bytes: of this rank and tree, for units whose unshard mode is AUTO; 0: no bound.
        log: called as ``log(level, rank, component, message)``, from any thread.
        listening: of rank 0 with a ``"tcp:"`` store: called as ``listening(store)`` with the store of the other ranks,
            once it takes connections and before it waits for them. With ``"tcp:HOST:0"`` the port is a free one.
            PyTorch: ``TCPStore(port=0).port``.

    Threads: any may ask; one at a time may communicate, for each context. A rank that waits needs its own thread.
    Raises:
        InvalidState: a world of one inside a launch of several.
        Unsupported: ranks on several machines, or of several users.
        Timeout: a rank did not come; the text names it.
        BackendUnavailable: with the reason for each candidate.
    """

    __slots__ = ("rank", "world_size", "local_rank", "local_world_size", "backend", "group", "_tokens", "_depth")

    rank: int
    world_size: int
    backend: str
    group: Group
    """The default group: all ranks."""

    def __init__(
        self,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        store: str | None = None,
        backend: str | None = None,
        name: str | None = None,
        arrival_timeout_ms: int = 0,
        progress_timeout_ms: int = 0,
        join_timeout_ms: int = 0,
        event_capacity: int = 0,
        memory_budget_bytes: int = 0,
        log: LogFunction | None = None,
        log_level: int = capi.LOG_DEFAULT,
        listening: ListeningFunction | None = None,
    ) -> None:
        record = make_options(
            rank=rank,
            world_size=world_size,
            store=store,
            backend=backend,
            name=name,
            arrival_timeout_ms=arrival_timeout_ms,
            progress_timeout_ms=progress_timeout_ms,
            join_timeout_ms=join_timeout_ms,
            event_capacity=event_capacity,
            memory_budget_bytes=memory_budget_bytes,
            log=log,
            log_level=log_level,
            listening=listening,
        )
        self._set_up(capi.context_create(record))

    @classmethod
    def _of(cls, handle: Any) -> Context:
        """The object of an owned handle."""
        found = known(handle)
        if isinstance(found, Context):
            return found
        context = cls.__new__(cls)
        context._set_up(handle)
        return context

    def _set_up(self, handle: Any) -> None:
        self._own(handle)
        info = ask(capi.context_get_info, capi.context_info, handle)
        self.rank, self.world_size = info.rank, info.world_size
        self.local_rank, self.local_world_size = info.local_rank, info.local_world_size
        self.backend = info.backend
        self.group = Group._of(shared(info.group))
        self._tokens: list[contextvars.Token[Context]] = []
        self._depth = [0, 0]  # of nested forward and backward calls, see module.py

    @property
    def backend_report(self) -> str:
        """Each backend that was considered, and why it was taken or refused."""
        return str(ask(capi.context_get_info, capi.context_info, self._handle).backend_report)

    def use(self) -> Self:
        """Makes it the current context of this thread or task, for good."""
        _current.set(self)
        return self

    def set_interrupt(self, interrupt: Callable[[], object] | None) -> None:
        """Called every 100 ms of a wait; what it raises ends the wait, and is raised from it. None: nothing is called,
        and Ctrl-C waits for the end of the wait. By default signals are looked at.

        Threads: any.
        """
        callback = None if interrupt is None else lambda record: (interrupt(), None)[1]
        capi.context_set_interrupt(self._handle, callback)

    def shutdown(self) -> None:
        """Ends the rank in order. Collective. PyTorch: ``destroy_process_group``."""
        capi.context_shutdown(self._handle)

    def abort(self, reason: str = "aborted by the program") -> None:
        """Emergency stop: whoever waits in a group of this context gets :class:`Aborted` with ``reason``.

        Threads: any.
        """
        capi.context_abort(self._handle, reason)

    def __enter__(self) -> Self:
        self._tokens.append(_current.set(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _current.reset(self._tokens.pop())
        if error is None:
            self.shutdown()
        else:
            self.abort(f"{type(error).__name__}: {error}")

    def __repr__(self) -> str:
        return f"<tpfsdp.Context rank {self.rank} of {self.world_size}, {self.backend}>"

    # ---- What happened, see trace.py ----

    def counters(self, reset: bool = False) -> Counters:
        """Sums since the start, or the last reset. They are exact."""
        record = capi.counters()
        capi.trace_get_counters(self._handle, reset, record)
        return snapshot(Counters, record)

    def events(self) -> list[TraceEvent]:
        """The events kept, oldest first; ``event_capacity`` says how many are."""
        return [read_event(self._handle, position) for position in range(self.counters().event_count)]

    def clear_events(self) -> None:
        """Forgets the events kept, and that some were lost."""
        capi.trace_clear(self._handle)

    def mark(self, name: str) -> None:
        """Adds an event of the program's own. PyTorch: ``record_function``."""
        capi.trace_mark(self._handle, name)

    def chrome_trace(self) -> str:
        """The events as JSON for ``chrome://tracing``. PyTorch: ``export_chrome_trace``."""
        return read_blob(capi.trace_export_chrome(self._handle)).decode()
