# SPDX-License-Identifier: Apache-2.0
"""What happened on a rank, in what order, and what it cost: see :meth:`Context.counters` and :meth:`Context.events`."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from . import capi
from ._handle import snapshot


class EventKind(enum.IntEnum):
    UNKNOWN = capi.EVENT_UNKNOWN
    UNSHARD = capi.EVENT_UNSHARD
    RESHARD = capi.EVENT_RESHARD
    POST_BACKWARD = capi.EVENT_POST_BACKWARD
    REDUCE = capi.EVENT_REDUCE
    COLLECTIVE = capi.EVENT_COLLECTIVE
    HOOK = capi.EVENT_HOOK
    WRITE = capi.EVENT_WRITE
    MARK = capi.EVENT_MARK
    WAIT_UNSHARD = capi.EVENT_WAIT_UNSHARD

    @classmethod
    def _missing_(cls, value: object) -> EventKind:
        return cls.UNKNOWN


@dataclasses.dataclass(frozen=True, slots=True)
class Counters:
    """Sums since the context was made, or the last reset."""

    events_lost: bool
    event_count: int
    """Events kept now."""
    all_gathers: int
    reduce_scatters: int
    all_reduces: int
    other_collectives: int
    gathered_bytes: int
    """Full parameters made, as their shapes say."""
    reduced_bytes: int
    wire_bytes: int
    """Moved between ranks."""
    filled_bytes: int
    """Written by this rank for others to use: its parts of common slots (:attr:`UnshardMode.SHARED`)."""
    copies: int
    """Beside the collectives."""
    copied_bytes: int
    prefetch_hits: int
    prefetch_misses: int
    spare_slots: int
    deferred_reshards: int
    waits: int
    wait_ns: int
    allocations: int
    """Of the library; 0 in a steady step."""


@dataclasses.dataclass(frozen=True, slots=True)
class TraceEvent:
    """One thing that happened."""

    kind: EventKind
    operation: str
    unit: str
    group: str
    detail: str
    training_state: int
    sharded_state: int
    op: int
    dtype: int
    world_size: int
    index: int
    start_ns: int
    duration_ns: int
    count: int
    output_count: int
    sequence: int


def read_event(context: Any, position: int) -> TraceEvent:
    record = capi.trace_event()
    capi.trace_get_event(context, position, record)
    event = snapshot(TraceEvent, record)
    return dataclasses.replace(event, kind=EventKind(event.kind))
