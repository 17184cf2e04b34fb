# SPDX-License-Identifier: Apache-2.0
"""Full parameters in memory of the program: what ``fully_shard(..., host_memory=...)`` takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from . import capi
from ._handle import shared
from .errors import InvalidArgument
from .parameter import Parameter


class HostMemory(Protocol):
    """Asked once for each parameter, when its unit is gathered and when it is freed again. Both run inside calls of
    the library, and may ask for infos of ``param``, nothing else of the tree. What they raise is raised from that
    call."""

    def acquire(self, param: Parameter, size_bytes: int, alignment_bytes: int) -> Any:
        """Writable memory of at least ``size_bytes``, dense: a NumPy array, or anything with a buffer. The gather
        writes straight into it. The alignment is a wish."""

    def release(self, param: Parameter, memory: Any) -> None:
        """``memory`` is not needed any more."""


def make_callback(host: HostMemory) -> Callable[[Any], None]:
    held: dict[int, Any] = {}

    def call(record: Any) -> None:
        param = Parameter._of(shared(record.param))
        key = int(param._handle)
        if record.op == capi.MEMORY_RELEASE:
            host.release(param, held.pop(key))
            return
        size = record.size_bytes
        memory = host.acquire(param, size, record.alignment_bytes)
        array = memory if isinstance(memory, np.ndarray) else np.frombuffer(memory, np.uint8)
        if array.nbytes < size or not array.flags.c_contiguous or not array.flags.writeable:
            raise InvalidArgument(
                f"acquire gave {array.nbytes} bytes for {param.name}; "
                f"{size} bytes of writable memory without gaps are needed"
            )
        record.set_address(array.__array_interface__["data"][0])
        held[key] = memory

    return call
