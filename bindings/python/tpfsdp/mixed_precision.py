# SPDX-License-Identifier: Apache-2.0
"""Dtypes of computing and reducing: what ``fully_shard(..., mp_policy=...)`` takes."""

from __future__ import annotations

import dataclasses
from typing import Any

from . import capi, dtypes
from ._handle import options


@dataclasses.dataclass(frozen=True)
class MixedPrecisionPolicy:
    """NumPy dtypes, or their names, of f64, f32, f16 or bf16 (``ml_dtypes.bfloat16``); None: the parameter's own.

    Shards, their gradients and so the optimizer's state keep the parameter's own dtype; parameters that are no floats
    are never cast, nor are buffers. The library touches no activations: :attr:`FSDPModule.input_dtype` and
    :attr:`FSDPModule.output_dtype` say which dtypes they should have. PyTorch: ``MixedPrecisionPolicy``.
    """

    param_dtype: Any = None
    """Of full values, of their gather, and of the gradients that the program gives."""
    reduce_dtype: Any = None
    """Of the reduction, and of gradients that add up without sync."""
    output_dtype: Any = None
    """What floating outputs should be cast to."""
    cast_forward_inputs: bool = True
    """Whether floating inputs should be cast to ``param_dtype``."""


def make_record(policy: MixedPrecisionPolicy) -> Any:
    if not isinstance(policy, MixedPrecisionPolicy):
        raise TypeError(f"mp_policy is a MixedPrecisionPolicy, not {type(policy).__name__}")

    def code(dtype: Any) -> int:
        return 0 if dtype is None else dtypes.from_numpy(dtype)

    return options(
        capi.mixed_precision_policy(),
        param_dtype=code(policy.param_dtype),
        reduce_dtype=code(policy.reduce_dtype),
        output_dtype=code(policy.output_dtype),
        cast_forward_inputs=capi.TOGGLE_DEFAULT if policy.cast_forward_inputs else capi.TOGGLE_OFF,
    )
