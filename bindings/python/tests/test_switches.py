# SPDX-License-Identifier: Apache-2.0
"""The setters of a sharded module: what they change, and that they are read back."""

from __future__ import annotations

import json

import numpy as np
import pytest
from models import MLP, full_values, micro_batch, sgd, sharded_mlp, train_sharded

import tpfsdp


def backward_of(model: MLP, rank: tpfsdp.Context, step: int) -> None:
    x, target = micro_batch(step, rank.rank, rank.world_size)
    model.run_backward(model(x) - target)


def test_gradient_accumulation() -> None:
    def work(rank: tpfsdp.Context, sync_each: bool) -> tuple[list[np.ndarray], int, int]:
        model = sharded_mlp(reshard_after_forward=True)
        tpfsdp.prepare(model)
        rank.counters(reset=True)
        for step in range(3):
            is_last = step == 2
            model.set_requires_gradient_sync(sync_each or is_last)
            assert model.layers[1].switches.requires_gradient_sync == (sync_each or is_last)
            backward_of(model, rank, step)
        counters = rank.counters()
        assert (model.memory_info().accumulator_bytes == 0) == sync_each
        sgd(model)
        return full_values(model), counters.reduce_scatters, counters.all_gathers

    summed = tpfsdp.run_ranks(2, work, False)
    each = tpfsdp.run_ranks(2, work, True)
    assert [run[1:] for run in summed] == [(3, 18)] * 2
    assert [run[1:] for run in each] == [(9, 18)] * 2
    for got, expected in zip(summed[0][0], each[0][0], strict=True):
        np.testing.assert_allclose(got, expected, rtol=1.3e-6, atol=1e-5)


def test_parameters_kept_over_micro_batches() -> None:
    def work(rank: tpfsdp.Context) -> int:
        model = sharded_mlp(reshard_after_forward=False)
        for step in range(3):
            is_last = step == 2
            model.set_is_last_backward(is_last)
            model.set_reshard_after_backward(is_last)
            model.set_requires_gradient_sync(is_last)
            backward_of(model, rank, step)
        return rank.counters().all_gathers

    # One gather of each unit, and the comparison of the start.
    assert tpfsdp.run_ranks(2, work) == [4, 4]


def test_reshard_after_forward_may_change() -> None:
    def work(rank: tpfsdp.Context) -> list[np.float32]:
        model = sharded_mlp()
        model.set_reshard_after_forward(False)
        with pytest.raises(tpfsdp.InvalidArgument, match="True or False"):
            model.set_reshard_after_forward(2)
        return train_sharded(rank, model, 3)

    def plain(rank: tpfsdp.Context) -> list[np.float32]:
        return train_sharded(rank, sharded_mlp(), 3)

    assert tpfsdp.run_ranks(2, work) == tpfsdp.run_ranks(2, plain)


def test_reshard_to_fewer_ranks() -> None:
    def work(rank: tpfsdp.Context, reshard: bool | int) -> tuple[list[np.float32], list[np.ndarray], int]:
        model = sharded_mlp(reshard_after_forward=reshard)
        losses = train_sharded(rank, model, 2)
        x, _ = micro_batch(2, rank.rank, rank.world_size)
        model(x)
        state = model.layers[0].units[0].sharded_state
        expected = tpfsdp.ShardedState.SHARDED if reshard is True else tpfsdp.ShardedState.POST_FORWARD
        assert state == expected
        return losses, full_values(model), model.memory_info().part_bytes

    parts = tpfsdp.run_ranks(4, work, 2)
    whole = tpfsdp.run_ranks(4, work, True)
    for mine, theirs in zip(parts, whole, strict=True):
        assert mine[0] == theirs[0]
        assert all((a == b).all() for a, b in zip(mine[1], theirs[1], strict=True))
        assert mine[2] > 0
        assert theirs[2] == 0


def test_prefetch_lists() -> None:
    def work(rank: tpfsdp.Context) -> list[str]:
        model = sharded_mlp(reshard_after_forward=True)
        first, second, third = model.layers
        model.set_modules_to_forward_prefetch([first, second])
        third.set_modules_to_backward_prefetch([second, first])
        with pytest.raises(AttributeError):
            model.set_modules_to_forward_prefetch([None])
        tpfsdp.prepare(model)
        rank.clear_events()
        backward_of(model, rank, 0)
        return [event.unit for event in rank.events() if event.kind == tpfsdp.EventKind.UNSHARD]

    names = ["layers.0", "layers.1", "layers.2", "layers.2", "layers.1", "layers.0"]
    assert tpfsdp.run_ranks(2, work, event_capacity=200) == [names] * 2


def opened(rank: tpfsdp.Context) -> bool:
    return any(event.kind == tpfsdp.EventKind.WRITE and event.operation == "open" for event in rank.events())


def test_manual_finalization() -> None:
    def work(rank: tpfsdp.Context) -> None:
        model = sharded_mlp()
        assert model.finalize_backward() is None
        model.set_manual_backward_finalization(True)
        for asynchronous in (False, True):
            backward_of(model, rank, 0)
            assert not opened(rank)
            pending = model.finalize_backward(async_op=asynchronous)
            assert (pending is not None) == asynchronous
            if pending is not None:
                pending.wait()
            assert opened(rank)
            sgd(model)
            rank.clear_events()

    tpfsdp.run_ranks(2, work, event_capacity=500)


def test_the_other_switches() -> None:
    def work(rank: tpfsdp.Context) -> None:
        model = sharded_mlp()
        layer = model.layers[0]
        layer.set_unshard_in_backward(False)
        model.set_reduce_scatter_unused_params(True)
        assert layer.switches == tpfsdp.Switches(
            reshard_after_backward=True,
            requires_gradient_sync=True,
            is_last_backward=True,
            manual_backward_finalization=False,
            unshard_in_backward=False,
            reduce_unused_params=True,
        )
        model.set_reduce_scatter_unused_params(False, recurse=False)
        assert layer.switches.reduce_unused_params
        assert not model.switches.reduce_unused_params

    tpfsdp.run_ranks(2, work)


def test_the_plan_says_what_a_step_does() -> None:
    def work(rank: tpfsdp.Context) -> None:
        model = sharded_mlp()
        with pytest.raises(tpfsdp.InvalidState, match="prepare"):
            model.plan()
        tpfsdp.prepare(model)
        plan = json.loads(model.plan("json"))
        rank.counters(reset=True)
        backward_of(model, rank, 0)
        counters = rank.counters()
        assert plan["gathers_per_step"] == counters.all_gathers
        assert plan["reductions_per_step"] == counters.reduce_scatters
        assert plan["received_bytes_per_step"] == counters.wire_bytes
        assert plan["planned_peak_bytes"] == model.memory_info().peak_bytes
        assert plan["units"][0]["parameters"][0]["rows_of_ranks"] == [[0, 5], [5, 10]]
        assert "layers.0" in model.plan()
        assert model.plan("html").startswith("<!doctype html>")
        with pytest.raises(tpfsdp.InvalidArgument, match="one of text"):
            model.plan("pdf")

    tpfsdp.run_ranks(2, work)
