# SPDX-License-Identifier: Apache-2.0
"""What one ``fully_shard`` call gathers together, and what a tree holds: plain records."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from . import capi, dtypes
from ._handle import ask, snapshot


class ShardedState(enum.IntEnum):
    UNKNOWN = capi.SHARDED_UNKNOWN
    SHARDED = capi.SHARDED_SHARDED
    POST_FORWARD = capi.SHARDED_POST_FORWARD
    UNSHARDED = capi.SHARDED_UNSHARDED


class TrainingState(enum.IntEnum):
    UNKNOWN = capi.TRAINING_UNKNOWN
    IDLE = capi.TRAINING_IDLE
    FORWARD = capi.TRAINING_FORWARD
    PRE_BACKWARD = capi.TRAINING_PRE_BACKWARD
    POST_BACKWARD = capi.TRAINING_POST_BACKWARD


class Storage(enum.IntEnum):
    UNKNOWN = capi.STORAGE_UNKNOWN
    LIBRARY = capi.STORAGE_LIBRARY
    HOST = capi.STORAGE_HOST


class Layout(enum.IntEnum):
    """Which elements of a unit's parameters each rank owns."""

    UNKNOWN = capi.LAYOUT_UNKNOWN
    ROWS = capi.LAYOUT_ROWS
    """Of each parameter as many rows as the others, the last ranks fewer or none. PyTorch: ``Shard(0)``."""
    CONTIGUOUS = capi.LAYOUT_CONTIGUOUS
    """Of all parameters in a row one slice, as large as that of the others but for a granule."""


class Granule(enum.IntEnum):
    """Where :attr:`Layout.CONTIGUOUS` may cut a parameter; a number instead: after each so many rows."""

    ELEMENT = capi.GRANULE_ELEMENT
    """Anywhere: shards are 1-D runs of the row-major whole."""
    ROW = capi.GRANULE_ROW


class UnshardMode(enum.IntEnum):
    """How full parameters come to be."""

    UNKNOWN = capi.UNSHARD_UNKNOWN
    AUTO = capi.UNSHARD_AUTO
    """PRIVATE, or SHARED if that would not fit the context's ``memory_budget_bytes`` on every rank; decided at the first
    step."""
    PRIVATE = capi.UNSHARD_PRIVATE
    """A copy per rank, read from the shards of all."""
    SHARED = capi.UNSHARD_SHARED
    """A copy per host, of which each rank writes its part."""
    MAPPED = capi.UNSHARD_MAPPED
    """No copy: the shards of all ranks lie in order in memory that all have mapped, and an unshard moves nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class UnitInfo:
    """A unit as it stands. PyTorch: ``FSDPParamGroup``."""

    name: str
    param_count: int
    sharded_state: ShardedState
    training_state: TrainingState
    storage: Storage
    pin_count: int
    """Views of full parameters that hold it full."""
    slot: int
    """Units with the same number share memory; -1: none yet, the program's own, or mapped."""
    unshard_mode: UnshardMode
    """The one in force; AUTO: not decided before the first step."""
    unshard_reason: str
    layout: Layout
    param_dtype: Any
    """Of its policy; None: each parameter's own."""
    reduce_dtype: Any
    shard_bytes: int
    full_bytes: int
    logical_bytes: int
    wire_bytes: int
    grad_bytes: int
    version: int
    unshards: int
    deferred_reshards: int


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryInfo:
    """What a root's tree holds on this rank, exactly. total_bytes is shards + gradient shards + slots + gradient slots
    + casts + parts + accumulators. PyTorch: ``memory_stats``."""

    slot_count: int
    grad_slot_count: int
    spare_slot_count: int
    shard_bytes: int
    cast_bytes: int
    """Copies of shards in the dtype of computing."""
    grad_shard_bytes: int
    slot_bytes: int
    grad_slot_bytes: int
    part_bytes: int
    """What stays between forward and backward with a number as ``reshard_after_forward``."""
    accumulator_bytes: int
    """Full gradients that add up without sync."""
    host_bytes: int
    """Lent by the program's own memory now; not in total_bytes."""
    total_bytes: int
    planned_peak_bytes: int
    peak_bytes: int


def units_of(module: Any) -> list[UnitInfo]:
    """The units of a sharded module's handle."""
    found = []
    for index in range(ask(capi.fsdp_module_get_info, capi.fsdp_module_info, module).unit_count):
        handle = capi.fsdp_module_get_unit(module, index)
        info = snapshot(UnitInfo, ask(capi.unit_get_info, capi.unit_info, handle))
        capi.handle_release(handle)
        found.append(
            dataclasses.replace(
                info,
                sharded_state=ShardedState(info.sharded_state),
                training_state=TrainingState(info.training_state),
                storage=Storage(info.storage),
                unshard_mode=UnshardMode(info.unshard_mode),
                layout=Layout(info.layout),
                param_dtype=dtypes.or_none(info.param_dtype),
                reduce_dtype=dtypes.or_none(info.reduce_dtype),
            )
        )
    return found


def memory_of(module: Any) -> MemoryInfo:
    """Of a root's handle."""
    return snapshot(MemoryInfo, ask(capi.root_get_memory_info, capi.memory_info, module))
