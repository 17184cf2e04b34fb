# SPDX-License-Identifier: Apache-2.0
"""How full parameters come to be, and dtypes of computing and reducing."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from models import MLP, full_values, sharded_mlp, train_reference, train_sharded

import tpfsdp
from tpfsdp import MixedPrecisionPolicy, UnshardMode

BF16 = np.dtype(ml_dtypes.bfloat16)


class One(tpfsdp.Module):
    def __init__(self, values: Any) -> None:
        super().__init__()
        self.weight = tpfsdp.Parameter(np.asarray(values, np.float32))
        self.seen: list[np.ndarray] = []

    def forward(self, x: Any) -> Any:
        self.seen.append(np.array(self.weight.full))
        return x

    def backward(self, dy: Any) -> Any:
        with self.weight.grad_buffer() as grad:
            grad[...] = dy
        return dy


@pytest.mark.parametrize("mode", [UnshardMode.PRIVATE, UnshardMode.SHARED, UnshardMode.MAPPED])
def test_modes_train_to_the_same_bits(mode: UnshardMode) -> None:
    expected, values = train_reference(2, 3)

    def work(rank: tpfsdp.Context) -> None:
        model = sharded_mlp(unshard_mode=mode)
        assert train_sharded(rank, model, 3) == expected
        assert all((one == other).all() for one, other in zip(full_values(model), values, strict=True))

    tpfsdp.run_ranks(2, work)


@pytest.mark.parametrize("mode", [UnshardMode.SHARED, UnshardMode.MAPPED])
def test_common_memory_is_read_only(mode: UnshardMode) -> None:
    def work(rank: tpfsdp.Context) -> None:
        model = tpfsdp.fully_shard(One([1, 2, 3, 4]), unshard_mode=mode)
        tpfsdp.prepare(model)
        (info,) = model.units
        assert (info.unshard_mode, info.unshard_reason) == (mode, "asked for")
        before = rank.counters()
        model.unshard()
        assert not model.weight.full.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            model.weight.full[0] = 7
        assert (model.weight.full == [1, 2, 3, 4]).all()
        after = rank.counters()
        assert after.wire_bytes == before.wire_bytes
        assert after.filled_bytes - before.filled_bytes == (8 if mode == UnshardMode.SHARED else 0)
        model.reshard()

    tpfsdp.run_ranks(2, work)


def test_a_budget_chooses() -> None:
    def work(rank: tpfsdp.Context, mode: UnshardMode, reason: str) -> None:
        model = tpfsdp.fully_shard(MLP())
        assert model.units[0].unshard_mode == UnshardMode.AUTO
        tpfsdp.prepare(model)
        assert model.units[0].unshard_mode == mode
        assert reason in model.units[0].unshard_reason

    tpfsdp.run_ranks(2, work, UnshardMode.PRIVATE, "no memory budget is set")
    tpfsdp.run_ranks(2, work, UnshardMode.PRIVATE, "within its memory budget", memory_budget_bytes=1 << 30)
    tpfsdp.run_ranks(2, work, UnshardMode.SHARED, "over its memory budget of 1000", memory_budget_bytes=1000)
    with pytest.raises(tpfsdp.InvalidArgument, match="memory_budget_bytes"):
        tpfsdp.run_ranks(2, work, UnshardMode.AUTO, "", memory_budget_bytes=-1)


def test_mixed_precision() -> None:
    def work(rank: tpfsdp.Context) -> None:
        policy = MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype="float32", output_dtype=np.float64)
        model = tpfsdp.fully_shard(One([257, 1 / 3, 1, 1]), mp_policy=policy)
        assert (model.input_dtype, model.output_dtype) == (BF16, np.float64)
        weight = model.weight
        assert (weight.dtype, weight.compute_dtype, weight.reduce_dtype) == (np.float32, BF16, np.float32)
        model(np.zeros(4, np.float32))
        assert model.seen[0].dtype == BF16
        assert model.seen[0].tolist() == [256, 0.333984375, 1, 1]
        model.run_backward(256 if rank.rank == 0 else 1)
        assert weight.grad.dtype == np.float32
        assert (weight.grad == 128.5).all()
        assert weight.shard[0] == (257 if rank.rank == 0 else 1)
        (info,) = model.units
        assert (info.param_dtype, info.reduce_dtype) == (BF16, np.float32)
        assert model.memory_info().cast_bytes == 4

    tpfsdp.run_ranks(2, work)


@pytest.mark.parametrize("granule", [tpfsdp.Granule.ELEMENT, tpfsdp.Granule.ROW, 3])
def test_slices_train_to_the_same_bits(granule: Any) -> None:
    expected, values = train_reference(2, 3)

    def work(rank: tpfsdp.Context) -> None:
        model = sharded_mlp(layout=tpfsdp.Layout.CONTIGUOUS, granule=granule)
        assert model.layers[0].units[0].layout == tpfsdp.Layout.CONTIGUOUS
        assert train_sharded(rank, model, 3) == expected
        assert all((one == other).all() for one, other in zip(full_values(model), values, strict=True))

    tpfsdp.run_ranks(2, work)


def test_a_run_of_elements() -> None:
    def work(rank: tpfsdp.Context) -> None:
        layout = {"layout": tpfsdp.Layout.CONTIGUOUS, "granule": tpfsdp.Granule.ELEMENT}
        model = tpfsdp.fully_shard(One([[0, 1, 2], [3, 4, 5]]), **layout)
        info = model.weight.shard_info()
        assert (info.is_ragged, info.flat_offset, info.shard_dim) == (True, 3 * rank.rank, -1)
        assert (info.global_shape, info.local_shape, info.offsets) == ((2, 3), (3,), ())
        assert model.weight.shard.tolist() == ([0, 1, 2] if rank.rank == 0 else [3, 4, 5])
        with pytest.raises(tpfsdp.InvalidArgument, match="granule_size"):
            tpfsdp.fully_shard(One([1, 2]), layout=tpfsdp.Layout.CONTIGUOUS, granule=0)

    tpfsdp.run_ranks(2, work)


def test_policies_that_are_refused(alone: tpfsdp.Context) -> None:
    policy = MixedPrecisionPolicy()
    assert policy == MixedPrecisionPolicy(None, None, None, True)
    with pytest.raises(AttributeError):
        policy.param_dtype = BF16  # type: ignore[misc]
    with pytest.raises(tpfsdp.InvalidArgument, match=r"mp_policy\.reduce_dtype is i32"):
        tpfsdp.fully_shard(MLP(), mp_policy=MixedPrecisionPolicy(reduce_dtype=np.int32))
    with pytest.raises(TypeError, match="MixedPrecisionPolicy"):
        tpfsdp.fully_shard(MLP(), mp_policy="bf16")  # type: ignore[arg-type]
    model = tpfsdp.fully_shard(MLP(), mp_policy=MixedPrecisionPolicy(BF16, cast_forward_inputs=False))
    assert model.input_dtype is None
