# SPDX-License-Identifier: Apache-2.0
"""Memory in and out without a copy, proven by address; capsules of both kinds, freed once."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tpfsdp

DTYPES = [
    "float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
    "complex64", "complex128", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
]  # fmt: skip


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def aligned(shape: tuple[int, ...], dtype: Any = "float32") -> np.ndarray:
    """JAX aliases memory at 64-byte bounds only."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -address(raw) % 64
    return raw[start : start + size].view(dtype).reshape(shape)


class Watched:
    """A DLPack producer of which the test sees when its memory is let go."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numpy_round_trip_by_address(dtype: Any) -> None:
    source = np.ones((3, 5), dtype)
    tensor = tpfsdp.Tensor.from_numpy(source)
    array = tensor.numpy()
    assert (tensor.shape, tensor.dtype, tensor.data_ptr(), tensor.nbytes) == (
        (3, 5), np.dtype(dtype), address(source), source.nbytes,
    )  # fmt: skip
    assert (array.dtype, array.shape, address(array)) == (source.dtype, (3, 5), address(source))
    array[1, 2] = 0
    assert source[1, 2] == 0


@pytest.mark.parametrize("shape", [(), (0,), (0, 4), (1,), (2, 3, 4)])
def test_shapes(shape: tuple[int, ...]) -> None:
    array = tpfsdp.Tensor.from_numpy(np.zeros(shape, np.int32)).numpy()
    assert array.shape == shape


def test_the_source_lives_as_long_as_what_was_made_from_it() -> None:
    source = np.arange(4.0)
    gone = weakref.ref(source)
    row = tpfsdp.Tensor.from_numpy(source).numpy()[1:]
    del source
    gc.collect()
    assert gone() is not None
    assert row.tolist() == [1, 2, 3]
    del row
    gc.collect()
    assert gone() is None


def test_numpy_takes_the_1x_capsule() -> None:
    tensor = tpfsdp.Tensor.from_numpy(np.arange(6.0).reshape(2, 3))
    array = np.from_dlpack(tensor)
    assert address(array) == tensor.data_ptr()
    array[0, 0] = 5  # 1.x can say that it is writable
    assert tensor.numpy()[0, 0] == 5


@pytest.mark.parametrize("options", [{}, {"stream": None}, {"max_version": None}, {"max_version": (0, 8)}])
def test_the_capsule_is_of_the_form_before_1_unless_asked(options: dict[str, Any]) -> None:
    tensor = tpfsdp.Tensor.from_numpy(np.zeros(3))
    assert '"dltensor"' in repr(tensor.__dlpack__(**options))
    assert '"dltensor_versioned"' in repr(tensor.__dlpack__(max_version=(1, 0)))
    assert tensor.__dlpack_device__() == (1, 0)


@pytest.mark.parametrize("max_version", [None, (1, 0)])
def test_a_capsule_nobody_takes_is_freed_once(max_version: Any) -> None:
    source = np.zeros(3)
    gone = weakref.ref(source)
    tensor = tpfsdp.Tensor.from_numpy(source)
    capsule = tensor.__dlpack__(max_version=max_version)
    tensor.close()
    del source, tensor
    gc.collect()
    assert gone() is not None
    del capsule
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("versioned", [True, False])
def test_import_renames_the_capsule_and_frees_it_once(versioned: bool) -> None:
    source = np.arange(3.0)
    gone = weakref.ref(source)
    capsule = source.__dlpack__(max_version=(1, 0)) if versioned else source.__dlpack__()
    tensor = tpfsdp.from_dlpack(capsule)
    assert '"used_dltensor' in repr(capsule)
    with pytest.raises(TypeError, match="unused capsule"):
        tpfsdp.from_dlpack(capsule)
    assert tensor.data_ptr() == address(source)
    del source, capsule
    gc.collect()
    assert gone() is not None
    del tensor
    gc.collect()
    assert gone() is None


def test_import_of_producers_old_and_new() -> None:
    source = np.arange(3.0)

    class Old:
        def __dlpack__(self) -> Any:
            return source.__dlpack__()

    assert tpfsdp.from_dlpack(Old()).data_ptr() == address(source)
    assert tpfsdp.from_dlpack(Watched(source)).data_ptr() == address(source)
    assert tpfsdp.from_dlpack(tpfsdp.Tensor.from_numpy(source)).data_ptr() == address(source)
    for wrong in (None, 3, "x", object(), ctypes.c_int(1)):
        with pytest.raises(TypeError):
            tpfsdp.from_dlpack(wrong)


def test_a_refused_import_leaves_the_capsule() -> None:
    capsule = np.zeros((4, 4))[:, ::2].__dlpack__()
    with pytest.raises(tpfsdp.Unsupported):
        tpfsdp.from_dlpack(capsule)
    assert '"dltensor"' in repr(capsule)


def test_what_dlpack_cannot_ask() -> None:
    tensor = tpfsdp.Tensor.from_numpy(np.zeros(3))
    for options in ({"copy": True}, {"dl_device": (2, 0)}, {"stream": 5}):
        with pytest.raises(BufferError):
            tensor.__dlpack__(**options)
    assert tensor.__dlpack__(copy=False, dl_device=(1, 0)) is not None


def test_layouts_that_are_not_dense_are_refused_by_name() -> None:
    for array in (np.zeros((4, 4)).T, np.zeros((4, 4))[:, :2], np.zeros(8)[::-1]):
        with pytest.raises(tpfsdp.Unsupported, match="strides"):
            tpfsdp.Tensor.from_numpy(array)
    with pytest.raises(tpfsdp.Unsupported, match="datetime64"):
        tpfsdp.Tensor.from_numpy(np.zeros(2, "datetime64[s]"))


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16", ml_dtypes.bfloat16], ids=str)
def test_jax_round_trip_by_address(dtype: Any) -> None:
    jax = pytest.importorskip("jax")
    source = aligned((4, 16), dtype)
    source[...] = 3
    tensor = tpfsdp.Tensor.from_numpy(source)
    array = jax.dlpack.from_dlpack(tensor)
    assert array.unsafe_buffer_pointer() == address(source)
    back = tpfsdp.from_dlpack(array)
    assert back.data_ptr() == address(source)
    assert (back.numpy() == 3).all()


def test_memory_of_the_library(alone: tpfsdp.Context) -> None:
    tensor = tpfsdp.Tensor.zeros((3, 4), "float64")
    assert tensor.data_ptr() % 64 == 0
    assert (np.asarray(tensor) == 0).all()
    array = tensor.numpy()
    assert tensor.numpy() is array
    assert np.asarray(tensor, dtype=np.float32).dtype == np.float32
    with pytest.raises(ValueError, match="copy"):
        np.asarray(tensor, dtype=np.float32, copy=False)


def test_a_closed_tensor() -> None:
    tensor = tpfsdp.Tensor.from_numpy(np.zeros(3))
    tensor.close()
    tensor.close()
    with pytest.raises(tpfsdp.InvalidHandle):
        tensor.__dlpack__()
