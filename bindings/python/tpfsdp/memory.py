# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays over memory of the library, and descriptions of arrays for it. Nothing is copied either way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import dtypes

Array = np.ndarray[Any, np.dtype[Any]]
# address, size_bytes, shape, dtype, device_type, device_id, epoch, read_only: as capi gives views.
View = tuple[int, int, tuple[int, ...], int, int, int, int, bool]

EPOCH = 6


class Memory:
    """What an array over foreign memory has as its base: every array made from that one keeps it alive."""

    __slots__ = ("__array_interface__", "owner", "__weakref__")

    __array_interface__: dict[str, Any]
    owner: object


def array_at(view: View, owner: object = None) -> tuple[Array, Memory]:
    """An array over ``view``, and its base, which keeps ``owner`` alive."""
    address, _, shape, code, _, _, _, read_only = view
    dtype = dtypes.to_numpy(code)
    memory = Memory()
    memory.owner = owner
    # The array interface knows NumPy's own types only; the others travel as bytes of the same size.
    plain = dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")
    memory.__array_interface__ = {
        "version": 3,
        "data": (address or memory_for_nothing, bool(read_only)),
        "shape": shape,
        "typestr": plain.str,
    }
    array = np.asarray(memory)
    return (array if plain is dtype else array.view(dtype)), memory


# An address for arrays without elements, whose memory is NULL.
_nothing = np.zeros(1, np.complex128)
memory_for_nothing: int = _nothing.__array_interface__["data"][0]


def as_array(data: Any) -> Array:
    """``data`` as an array without a copy where that is possible: arrays, DLPack producers, numbers."""
    if isinstance(data, np.ndarray):
        return data
    interface: Callable[[], Any] | None = getattr(data, "numpy", None)
    return interface() if interface is not None and hasattr(data, "__dlpack__") else np.asarray(data)


def describe(array: Array) -> tuple[Any, ...]:
    """What capi takes for memory: address, bytes, shape, dtype, strides in elements, read-only. The library refuses
    layouts that it cannot take, by name."""
    item = array.itemsize
    if any(stride % item for stride in array.strides):
        raise ValueError(f"the strides {array.strides} are no multiples of the element size {item}")
    address = array.__array_interface__["data"][0] if array.size else 0
    strides = None if array.flags.c_contiguous else tuple(stride // item for stride in array.strides)
    return (address, array.nbytes, array.shape, dtypes.from_numpy(array.dtype), strides, not array.flags.writeable)
