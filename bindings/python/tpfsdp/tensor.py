# SPDX-License-Identifier: Apache-2.0
"""Memory with a shape that the library keeps, exchanged by DLPack without a copy."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from . import capi, dtypes
from ._handle import Owner, known
from .context import current_context
from .errors import Unsupported
from .memory import Array, View, array_at, as_array, describe

_CPU = (1, 0)  # DLPack's device type and number


class Tensor(Owner):
    """Memory that stays while this object, or anything made from it, is alive. Made by :func:`from_dlpack`,
    :meth:`from_numpy`, :meth:`zeros` and the library. Threads: any."""

    __slots__ = ("_view", "_array")

    _view: View
    _array: weakref.ref[Array] | None

    def __init__(self) -> None:
        raise TypeError("tensors come from tpfsdp.from_dlpack, Tensor.from_numpy and Tensor.zeros")

    @classmethod
    def _of(cls, handle: Any) -> Tensor:
        found = known(handle)
        if isinstance(found, Tensor):
            return found
        tensor = cls.__new__(cls)
        tensor._own(handle)
        tensor._view = capi.tensor_get_view(handle)
        tensor._array = None
        return tensor

    @classmethod
    def from_numpy(cls, data: Any) -> Tensor:
        """A tensor over an array, without a copy; the array lives as long as the tensor. PyTorch: ``from_numpy``.

        Raises:
            Unsupported: not dense row-major, or a dtype that the library has not.
        """
        array = as_array(data)
        return cls._of(capi.tensor_create_borrowed(describe(array), array))

    @classmethod
    def zeros(cls, shape: Sequence[int], dtype: Any = "float32") -> Tensor:
        """New memory of the library, for the current context."""
        code = dtypes.from_numpy(dtype)
        context = current_context()._handle
        return cls._of(capi.tensor_create(context, tuple(shape), code, capi.DEVICE_CPU, 0))

    @property
    def shape(self) -> tuple[int, ...]:
        return self._view[2]

    @property
    def dtype(self) -> Any:
        """As NumPy's."""
        return dtypes.to_numpy(self._view[3])

    @property
    def nbytes(self) -> int:
        return self._view[1]

    def data_ptr(self) -> int:
        """The address."""
        return self._view[0]

    def numpy(self) -> Array:
        """An array over the same memory, which it keeps alive; bfloat16 as ml_dtypes' dtype. PyTorch: ``numpy``."""
        array = self._array() if self._array is not None else None
        if array is None:
            array, _ = array_at(self._view, self)
            self._array = weakref.ref(array)
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"{array.dtype} memory as {dtype} needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack_device__(self) -> tuple[int, int]:
        """(device type, device number) in DLPack's numbers."""
        return (self._view[4], self._view[5])

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule over the same memory: of DLPack 1.x for consumers that ask for it by ``max_version``, else of the
        form before, which many know only. One that nobody takes frees itself.

        Raises:
            BufferError: a copy, another device or a stream is asked for.
        """
        if copy:
            raise BufferError("tpfsdp exports its own memory and never a copy of it")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the tensor is on device {self.__dlpack_device__()}, not on {tuple(dl_device)}")
        if stream is not None:
            raise BufferError("memory of the CPU has no streams")
        try:
            if max_version is not None and tuple(max_version) >= (1, 0):
                return capi.tensor_to_dlpack(self._handle)
            return capi.tensor_to_dlpack_legacy(self._handle)
        except Unsupported as error:
            raise BufferError(str(error)) from error

    def close(self) -> None:
        """Gives this object's reference back; what was exported stays. Later calls raise InvalidHandle."""
        self._release()

    def __repr__(self) -> str:
        return f"<tpfsdp.Tensor {capi.tensor_dtype_name(self._view[3])} {list(self.shape)}>"


def from_dlpack(source: Any) -> Tensor:
    """A tensor over the memory of a DLPack producer, or capsule of either kind, without a copy. PyTorch: the same name.

    Raises:
        AbiMismatch: another major version of DLPack.
        Unsupported: not dense row-major, or not in CPU memory.
    """
    capsule = source
    if hasattr(source, "__dlpack__"):
        try:
            capsule = source.__dlpack__(max_version=(1, 3))
        except TypeError:  # a producer from before 1.0
            capsule = source.__dlpack__()
    kind = _capsule_name(capsule)
    if kind == "dltensor_versioned":
        return Tensor._of(capi.tensor_from_dlpack(capsule))
    if kind == "dltensor":
        return Tensor._of(capi.tensor_from_dlpack_legacy(capsule))
    raise TypeError(f"a DLPack producer or an unused capsule is needed, not {source!r}")


def _capsule_name(capsule: Any) -> str:
    """Python shows a capsule's name in its text only."""
    text = repr(capsule)
    parts = text.split('"')
    return parts[1] if text.startswith("<capsule object") and len(parts) == 3 else ""
