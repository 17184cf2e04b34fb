# SPDX-License-Identifier: Apache-2.0
"""Element types: the library's numbers and NumPy's. bfloat16 and the 8-bit floats come from ml_dtypes, if it is
there."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import capi
from .errors import Unsupported

try:
    import ml_dtypes
except ImportError:  # plain NumPy dtypes still work
    ml_dtypes = None  # type: ignore[assignment]

_NUMPY = {
    capi.DTYPE_F32: "float32", capi.DTYPE_F64: "float64", capi.DTYPE_F16: "float16",
    capi.DTYPE_I8: "int8", capi.DTYPE_I16: "int16", capi.DTYPE_I32: "int32", capi.DTYPE_I64: "int64",
    capi.DTYPE_U8: "uint8", capi.DTYPE_U16: "uint16", capi.DTYPE_U32: "uint32", capi.DTYPE_U64: "uint64",
    capi.DTYPE_BOOL: "bool", capi.DTYPE_C64: "complex64", capi.DTYPE_C128: "complex128",
}  # fmt: skip
_ML_DTYPES = {
    capi.DTYPE_BF16: "bfloat16",
    capi.DTYPE_F8_E3M4: "float8_e3m4", capi.DTYPE_F8_E4M3: "float8_e4m3",
    capi.DTYPE_F8_E4M3B11FNUZ: "float8_e4m3b11fnuz", capi.DTYPE_F8_E4M3FN: "float8_e4m3fn",
    capi.DTYPE_F8_E4M3FNUZ: "float8_e4m3fnuz", capi.DTYPE_F8_E5M2: "float8_e5m2",
    capi.DTYPE_F8_E5M2FNUZ: "float8_e5m2fnuz", capi.DTYPE_F8_E8M0FNU: "float8_e8m0fnu",
}  # fmt: skip

_to_numpy: dict[int, np.dtype[Any]] = {code: np.dtype(name) for code, name in _NUMPY.items()}
if ml_dtypes is not None:
    _to_numpy |= {code: np.dtype(getattr(ml_dtypes, name)) for code, name in _ML_DTYPES.items()}
_from_numpy: dict[np.dtype[Any], int] = {dtype: code for code, dtype in _to_numpy.items()}


def to_numpy(code: int) -> np.dtype[Any]:
    """The NumPy dtype of the library's ``code``."""
    dtype = _to_numpy.get(code)
    if dtype is None:
        hint = "; install ml_dtypes" if code in _ML_DTYPES and ml_dtypes is None else ""
        raise Unsupported(f"NumPy has no dtype for {capi.tensor_dtype_name(code)}{hint}")
    return dtype


def or_none(code: int) -> np.dtype[Any] | None:
    """The same; None where there is no dtype."""
    return to_numpy(code) if code else None


def from_numpy(dtype: Any) -> int:
    """The library's code of a NumPy dtype."""
    code = _from_numpy.get(np.dtype(dtype))
    if code is None:
        raise Unsupported(f"tpfsdp has no dtype for NumPy's {np.dtype(dtype)}")
    return code
