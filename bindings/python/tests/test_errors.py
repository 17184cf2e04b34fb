# SPDX-License-Identifier: Apache-2.0
"""Exceptions by class, with their fields; wrong objects raise and never crash."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import tpfsdp
from tpfsdp import capi, errors

BUILTIN_BASES = {
    tpfsdp.InvalidArgument: ValueError,
    tpfsdp.NotFound: LookupError,
    tpfsdp.Unsupported: NotImplementedError,
    tpfsdp.OutOfMemory: MemoryError,
    tpfsdp.IoFailure: OSError,
    tpfsdp.NonFinite: ArithmeticError,
    tpfsdp.Timeout: TimeoutError,
}


def test_every_status_has_its_exception() -> None:
    codes = {name: value for name, value in vars(capi).items() if name.startswith("ERR_")}
    assert len(codes) >= 22
    for name, status in codes.items():
        error = errors._make(
            "text", status, capi.error_status_class(status), 1, 2, 3, 1, "op", "unit", "group", "b", None
        )
        assert type(error) is not tpfsdp.TpfsdpError, name
        assert (error.status, str(error), error.error_class) == (status, "text", capi.error_status_class(status)), name
        assert (error.rank, error.backend_code, error.sequence, error.is_sticky) == (1, 2, 3, True)
        assert (error.operation, error.unit, error.group, error.backend) == ("op", "unit", "group", "b")
        assert isinstance(error, RuntimeError)


@pytest.mark.parametrize("kind", BUILTIN_BASES, ids=lambda kind: kind.__name__)
def test_builtin_bases(kind: type[tpfsdp.TpfsdpError]) -> None:
    assert issubclass(kind, BUILTIN_BASES[kind])


def test_codes_of_a_newer_library_keep_their_class() -> None:
    error = errors._make("text", -399, capi.ERROR_CLASS_STEP, -1, -1, -1, 0, "", "", "", "", None)
    assert type(error) is tpfsdp.StepError
    assert type(errors._make("text", -999, -1, -1, -1, -1, 0, "", "", "", "", None)) is tpfsdp.TpfsdpError


def test_a_mismatch_has_its_fields() -> None:
    def disagree(rank: tpfsdp.Context) -> None:
        dtype = np.float32 if rank.rank == 0 else np.float64
        with pytest.raises(tpfsdp.Mismatch) as caught:
            rank.group.all_reduce(np.zeros(4, dtype))
        error = caught.value
        assert (error.operation, error.group, error.is_sticky) == ("all_reduce", "train", False)
        assert error.sequence >= 0
        assert "rank 0" in str(error)
        assert "f64" in str(error)
        rank.group.reset()
        assert rank.group.all_reduce(np.float32(1)) == 2

    tpfsdp.run_ranks(2, disagree, name="train")


@pytest.mark.parametrize(
    "function", [getattr(capi, name) for name in dir(capi) if inspect.isfunction(getattr(capi, name))]
)
def test_none_and_foreign_objects_raise(function: object) -> None:
    """Every function of the lower layer, with every argument wrong in the same way."""
    name = function.__name__  # type: ignore[attr-defined]
    if name.startswith("_") or name in {"version_number", "version_text"}:
        return
    count = len(inspect.signature(function).parameters)  # type: ignore[arg-type]
    harmless = {
        "handle_retain", "handle_release", "context_abort", "group_abort",  # do nothing by contract
        "context_create",  # None: all defaults
        "int64_tuple", "int32_tuple", "name_tuple", "set_error_factory",
    }  # fmt: skip
    if name not in harmless:
        with pytest.raises((tpfsdp.TpfsdpError, TypeError, ValueError)):
            function(*[None] * count)  # type: ignore[operator]
    if name not in {"set_error_factory"}:
        with pytest.raises((tpfsdp.TpfsdpError, TypeError, ValueError)):
            function(*[object()] * count)  # type: ignore[operator]


def test_handles_of_another_kind_raise(alone: tpfsdp.Context) -> None:
    module = tpfsdp.Module()
    with pytest.raises(TypeError):
        capi.group_barrier(module._handle)
    with pytest.raises(tpfsdp.InvalidHandle):
        capi.group_barrier(None)


def test_released_handles_raise(alone: tpfsdp.Context) -> None:
    module = tpfsdp.Module()
    module._release()
    for call in (module.eval, module.zero_grad, module.describe, lambda: list(module.modules()), module):
        with pytest.raises(tpfsdp.InvalidHandle):
            call()
    param = tpfsdp.Parameter(np.zeros((2, 2), np.float32))
    param._release()
    with pytest.raises(tpfsdp.InvalidHandle):
        param.full  # noqa: B018


def test_after_shutdown_communication_raises() -> None:
    with tpfsdp.Context() as context:
        pass
    with pytest.raises(tpfsdp.InvalidState):
        context.group.barrier()


def test_there_is_no_silent_world_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(tpfsdp.TpfsdpError) as caught:
        tpfsdp.Context(world_size=1, rank=0)
    assert "4" in str(caught.value)


def test_no_current_context() -> None:
    with pytest.raises(tpfsdp.InvalidState, match="run_ranks"):
        tpfsdp.Module()
