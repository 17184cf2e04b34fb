# SPDX-License-Identifier: Apache-2.0
"""Whole training runs: equal to the unsharded one, bit for bit; and steps that fail."""

from __future__ import annotations

import numpy as np
import pytest
from models import MLP, full_values, initial_values, micro_batch, sgd, sharded_mlp, train_reference, train_sharded

import tpfsdp

STEPS = 10


@pytest.mark.parametrize("reshard", [None, True, False])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_equals_the_unsharded_run(world_size: int, reshard: bool | None) -> None:
    def train(rank: tpfsdp.Context) -> tuple[list[np.float32], list[np.ndarray]]:
        model = sharded_mlp(reshard_after_forward=reshard)
        losses = train_sharded(rank, model, STEPS)
        return losses, full_values(model)

    losses, values = train_reference(world_size, STEPS)
    for rank_losses, rank_values in tpfsdp.run_ranks(world_size, train):
        assert [loss.tobytes() for loss in rank_losses] == [loss.tobytes() for loss in losses]
        for found, expected in zip(rank_values, values, strict=True):
            assert found.tobytes() == expected.tobytes()


def test_a_list_is_one_unit_and_nested_calls_split() -> None:
    def train(rank: tpfsdp.Context) -> None:
        model = MLP()
        layers = list(model.layers)
        tpfsdp.fully_shard(layers[:2])
        tpfsdp.fully_shard(model)
        losses = train_sharded(rank, model, STEPS)
        assert [loss.tobytes() for loss in losses] == [loss.tobytes() for loss in train_reference(2, STEPS)[0]]
        assert [unit.param_count for unit in layers[0].units] == [2]
        assert [unit.param_count for unit in model.units] == [1]

    tpfsdp.run_ranks(2, train)


def test_gradients_handed_over_and_accumulated() -> None:
    def train(rank: tpfsdp.Context) -> None:
        weight = tpfsdp.Parameter(np.zeros((4, 2), np.float32))
        model = tpfsdp.Module()
        model.weight = weight
        tpfsdp.fully_shard(model)
        grads = [np.full((4, 2), 1 + rank.rank + 10 * i, np.float32) for i in range(2)]

        def forward() -> None:
            pass

        def backward() -> None:
            weight.add_grad(grads[0])
            with weight.grad_buffer(accumulate=True) as buffer:
                buffer += grads[1]

        model.forward, model.backward = forward, backward
        model()
        model.run_backward()
        mean = np.mean([2 * (1 + r) + 10 for r in range(rank.world_size)])
        assert weight.grad is not None
        assert weight.grad.shape == (2, 2)
        assert (weight.grad == mean).all()
        model.zero_grad(set_to_none=False)
        assert (weight.grad == 0).all()
        model.zero_grad()
        assert weight.grad is None

    tpfsdp.run_ranks(2, train)


def test_own_failure_reaches_peers_and_the_next_step_is_right() -> None:
    def train(rank: tpfsdp.Context) -> list[bytes]:
        model = sharded_mlp()
        tpfsdp.prepare(model)
        x, target = micro_batch(0, rank.rank, rank.world_size)
        if rank.rank == 1:
            original = model.layers[1].forward

            def broken(x: np.ndarray) -> np.ndarray:
                raise ZeroDivisionError("a bug in the model")

            model.layers[1].forward = broken
            with pytest.raises(ZeroDivisionError):
                model(x)
            model.layers[1].forward = original
        else:
            with pytest.raises(tpfsdp.Remote, match="ZeroDivisionError: a bug in the model") as caught:
                model.run_backward(model(x) - target)
            assert caught.value.rank == 1
        del x, target
        model.reset_iter_state()
        return [loss.tobytes() for loss in train_sharded(rank, model, 3)]

    expected = [loss.tobytes() for loss in train_reference(3, 3)[0]]
    assert tpfsdp.run_ranks(3, train) == [expected] * 3


def test_ranks_that_start_different_are_told_so() -> None:
    def train(rank: tpfsdp.Context) -> None:
        model = MLP()
        model.layers[1].weight.full[2, 3] += rank.rank
        for layer in model.layers:
            tpfsdp.fully_shard(layer)
        tpfsdp.fully_shard(model)
        with pytest.raises(tpfsdp.Mismatch, match=r"layers\.1\.weight"):
            tpfsdp.prepare(model)

    tpfsdp.run_ranks(2, train)


def test_broadcast_takes_the_values_of_rank_0() -> None:
    def train(rank: tpfsdp.Context) -> list[np.ndarray]:
        model = MLP()
        for param in model.parameters():
            param.full[...] += rank.rank
        for layer in model.layers:
            tpfsdp.fully_shard(layer, init="broadcast")
        tpfsdp.fully_shard(model)
        return full_values(model)

    for values in tpfsdp.run_ranks(3, train):
        for found, expected in zip(values, initial_values(), strict=True):
            assert found.tobytes() == expected.tobytes()


def test_evaluation_and_training_take_turns() -> None:
    def train(rank: tpfsdp.Context) -> None:
        model = sharded_mlp()
        x, target = micro_batch(0, 0, 1)
        model.run_backward(model(x) - target)
        sgd(model)
        model.zero_grad()
        model.eval()
        assert not model.layers[2].training
        with tpfsdp.no_grad(model):
            before = model(x)
        model.train()
        assert model.layers[2].training
        assert (model(x) == before).all()
        model.run_backward(before - target)

    tpfsdp.run_ranks(2, train)


def test_counters_and_events_of_a_step() -> None:
    def train(rank: tpfsdp.Context) -> None:
        model = sharded_mlp(reshard_after_forward=True)
        train_sharded(rank, model, 1)
        rank.counters(reset=True)
        rank.clear_events()
        train_sharded(rank, model, 1)
        counters = rank.counters()
        assert (counters.all_gathers, counters.reduce_scatters, counters.all_reduces) == (6, 3, 1)
        assert (counters.copies, counters.spare_slots, counters.allocations) == (0, 0, 0)
        assert not counters.events_lost
        rank.mark("done")
        events = rank.events()
        assert [event.unit for event in events if event.kind == tpfsdp.EventKind.REDUCE] == [
            "layers.2", "layers.1", "layers.0",
        ]  # fmt: skip
        assert events[-1].kind == tpfsdp.EventKind.MARK
        assert events[-1].operation == "done"
        assert '"traceEvents"' in rank.chrome_trace()

    tpfsdp.run_ranks(2, train, event_capacity=1000)
