# SPDX-License-Identifier: Apache-2.0
"""The call, its arguments, views and pins, the write window, segment mode, and the program's own memory."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from models import (
    MLP,
    Linear,
    full_values,
    initial_values,
    micro_batch,
    sgd,
    sharded_mlp,
    train_reference,
    train_sharded,
)

import tpfsdp


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_what_becomes_of_a_module() -> None:
    def work(rank: tpfsdp.Context) -> None:
        model = MLP()
        layer = model.layers[0]
        assert tpfsdp.fully_shard(layer) is layer
        assert isinstance(layer, tpfsdp.FSDPModule)
        assert isinstance(layer, Linear)
        assert type(layer).__name__ == "FSDPLinear"
        assert type(layer) is type(tpfsdp.fully_shard(model.layers[1]))
        assert not isinstance(type(layer)(np.zeros((2, 2), np.float32)), tpfsdp.FSDPModule)
        assert layer.is_root is None
        assert tpfsdp.fully_shard([model]) == [model]
        tpfsdp.prepare(model)
        assert (model.is_root, layer.is_root) == (True, False)
        info = layer.weight.shard_info()
        assert (info.global_shape, info.shard_dim) == ((10, 6), 0)
        assert (info.local_shape, info.offsets) == [((4, 6), (0, 0)), ((4, 6), (4, 0)), ((2, 6), (8, 0))][rank.rank]
        begin = info.offsets[0]
        assert (layer.weight.shard == initial_values()[0][begin : begin + info.local_shape[0]]).all()
        assert layer.weight.is_sharded
        assert not layer.weight.is_unsharded
        with pytest.raises(tpfsdp.InvalidState, match=r"layers\.0\.weight"):
            layer.weight.full  # noqa: B018
        with pytest.raises(tpfsdp.InvalidState):
            tpfsdp.fully_shard(layer)
        with pytest.raises(tpfsdp.Unsupported):
            copy.deepcopy(model)
        assert "MLP" in repr(model)

    tpfsdp.run_ranks(3, work)


@pytest.mark.parametrize("argument", ["shard_placement_fn", "offload_policy", "dp_mesh_dims"])
def test_unsupported_arguments_are_named(alone: tpfsdp.Context, argument: str) -> None:
    model = MLP()
    with pytest.raises(tpfsdp.Unsupported, match=argument):
        tpfsdp.fully_shard(model, **{argument: object()})  # type: ignore[arg-type]
    assert not isinstance(model, tpfsdp.FSDPModule)


@pytest.mark.parametrize(
    ("value", "error"),
    [(2, tpfsdp.InvalidArgument), (0, tpfsdp.InvalidArgument), ("yes", tpfsdp.InvalidArgument), (1.0, tpfsdp.InvalidArgument)],
)
def test_reshard_after_forward_keeps_numbers_and_flags_apart(alone: tpfsdp.Context, value: Any, error: Any) -> None:
    with pytest.raises(error):
        tpfsdp.fully_shard(MLP(), reshard_after_forward=value)


def test_bad_modules(alone: tpfsdp.Context) -> None:
    model = MLP()
    with pytest.raises(tpfsdp.InvalidArgument):
        tpfsdp.fully_shard(model.layers)  # a container
    with pytest.raises(tpfsdp.InvalidArgument):
        tpfsdp.fully_shard([])
    with pytest.raises(tpfsdp.InvalidArgument):
        tpfsdp.fully_shard([model.layers[0], model.layers[0]])
    for wrong in ([None], [model, 3], ["x"]):
        with pytest.raises(TypeError):
            tpfsdp.fully_shard(wrong)
    with pytest.raises(tpfsdp.InvalidArgument, match="init"):
        tpfsdp.fully_shard(model, init="guess")
    model.scalar = tpfsdp.Parameter(np.float32(1))
    with pytest.raises(tpfsdp.InvalidArgument, match="scalar"):
        tpfsdp.fully_shard(model)


def test_ignored_parameters_stay_whole() -> None:
    def work(rank: tpfsdp.Context) -> None:
        model = MLP()
        kept = model.layers[1].weight
        tpfsdp.fully_shard(model, ignored_params={kept})
        tpfsdp.prepare(model)
        assert not kept.is_sharded
        assert kept.full.shape == (7, 10)
        assert model.units[0].param_count == 2

    tpfsdp.run_ranks(2, work)


def test_a_mesh_chooses_the_ranks() -> None:
    def work(rank: tpfsdp.Context) -> None:
        mesh = tpfsdp.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        model = Linear(np.zeros((8, 3), np.float32))
        tpfsdp.fully_shard(model, mesh=mesh["b"])
        assert model.weight.shard.shape == (4, 3)
        with pytest.raises(tpfsdp.TpfsdpError):
            tpfsdp.fully_shard(Linear(np.zeros((8, 3), np.float32)), mesh=mesh)

    tpfsdp.run_ranks(4, work)


def test_dtypes_of_views() -> None:
    def work(rank: tpfsdp.Context) -> None:
        for dtype in ("float64", "float16", ml_dtypes.bfloat16):
            model = Linear(np.arange(12).reshape(6, 2).astype(dtype))
            tpfsdp.fully_shard(model)
            with tpfsdp.scope(model):
                assert model.weight.full.dtype == np.dtype(dtype)
                assert model.weight.full.astype(np.float64).tolist() == np.arange(12).reshape(6, 2).tolist()
            assert model.weight.shard.dtype == np.dtype(dtype)
            assert address(model.weight.shard) % 64 == 0

    tpfsdp.run_ranks(2, work)


def test_views_are_made_anew_only_when_the_memory_changes() -> None:
    def work(rank: tpfsdp.Context) -> None:
        model = sharded_mlp()
        weight = model.layers[0].weight
        shard = weight.shard
        assert weight.shard is shard
        with tpfsdp.scope(model):
            view = weight.full
            assert weight.full is view
            where = address(view)
            del view
        with tpfsdp.scope(model):
            assert address(weight.full) == where  # a unit's address does not change

    tpfsdp.run_ranks(2, work)


def test_a_view_holds_its_unit_full() -> None:
    def work(rank: tpfsdp.Context) -> None:
        model = sharded_mlp()
        layer = model.layers[0]
        with layer.unshard():
            part = layer.weight.full[2:4].T  # what is made from the view holds it, too
            expected = part.copy()
            assert layer.units[0].pin_count == 1
        assert layer.units[0].sharded_state == tpfsdp.ShardedState.UNSHARDED
        assert (part == expected).all()
        with pytest.raises(tpfsdp.InvalidState, match=r"layers\.0"):
            with tpfsdp.shards_write(model):
                pass
        del part
        gc.collect()
        info = layer.units[0]
        assert (info.sharded_state, info.pin_count, info.deferred_reshards) == (tpfsdp.ShardedState.SHARDED, 0, 1)
        with tpfsdp.shards_write(model):
            pass

    tpfsdp.run_ranks(2, work)


def test_a_view_may_die_on_another_thread() -> None:
    import threading

    def work(rank: tpfsdp.Context) -> None:
        model = sharded_mlp()
        layer = model.layers[0]
        held = []
        with layer.unshard():
            held.append(layer.weight.full)
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        assert layer.units[0].sharded_state == tpfsdp.ShardedState.SHARDED

    tpfsdp.run_ranks(2, work)


def test_a_view_outlives_the_model() -> None:
    def work(rank: tpfsdp.Context) -> tuple[np.ndarray, np.ndarray]:
        model = sharded_mlp()
        tpfsdp.prepare(model)
        gone = weakref.ref(model)
        shard = model.layers[0].weight.shard
        grad_source = model.layers[2].weight
        grad_source.grad = np.full(grad_source.shard.shape, 3, np.float32)
        grad = grad_source.grad
        assert grad is not None
        del model, grad_source
        gc.collect()
        assert gone() is None
        return shard, grad

    (shard, grad), _ = tpfsdp.run_ranks(2, work)
    assert (shard == initial_values()[0][:5]).all()
    assert (grad == 3).all()


def test_the_write_window() -> None:
    def work(rank: tpfsdp.Context) -> None:
        model = sharded_mlp()
        train_sharded(rank, model, 1)
        before = full_values(model)
        with tpfsdp.shards_write(model):
            for param in model.parameters():
                param.shard[...] *= 2
            with pytest.raises((tpfsdp.InvalidState, tpfsdp.Remote)):
                model(micro_batch(0, 0, 1)[0])  # would read shards
        model.reset_iter_state()
        for now, then in zip(full_values(model), before, strict=True):
            assert (now == 2 * then).all()
        with tpfsdp.shards_write(model), pytest.raises(tpfsdp.InvalidState), tpfsdp.shards_write(model):
            pass

    tpfsdp.run_ranks(2, work)


def test_set_data_and_grad_hooks() -> None:
    def work(rank: tpfsdp.Context) -> None:
        model = sharded_mlp()
        train_sharded(rank, model, 1)
        weight = model.layers[0].weight
        weight.set_data(np.full(weight.shard.shape, 7, np.float32))
        with tpfsdp.scope(model):
            assert (weight.full == 7).all()
        seen = []
        handle = weight.register_post_accumulate_grad_hook(lambda param: seen.append((param, param.grad.copy())))
        x, target = micro_batch(0, rank.rank, 2)
        model.run_backward(model(x) - target)
        assert [param for param, _ in seen] == [weight]
        assert (seen[0][1] == weight.grad).all()
        handle.remove()
        model.zero_grad()
        model.run_backward(model(x) - target)
        assert len(seen) == 1

    tpfsdp.run_ranks(2, work)


def test_async_unshard() -> None:
    def work(rank: tpfsdp.Context) -> None:
        model = sharded_mlp()
        tpfsdp.prepare(model)
        layer = model.layers[1]
        handle = layer.unshard(async_op=True)
        assert isinstance(handle, tpfsdp.UnshardHandle)
        handle.wait()
        handle.wait()
        assert layer.weight.is_unsharded
        layer.reshard()
        assert not layer.weight.is_unsharded
        tpfsdp.UnshardHandle().wait()
        layer.unshard(async_op=True)  # forward waits for it, if nobody does
        model(micro_batch(0, 0, 1)[0])

    tpfsdp.run_ranks(2, work)


def test_segment_mode_equals_the_unsharded_run() -> None:
    def work(rank: tpfsdp.Context) -> list[np.ndarray]:
        model = sharded_mlp()
        layers = list(model.layers)
        tpfsdp.prepare(model)
        for step in range(5):
            x, target = micro_batch(step, rank.rank, rank.world_size)
            inputs = [x]
            for index, layer in enumerate(layers):
                with tpfsdp.scope(layer):
                    if index + 1 < len(layers):
                        layers[index + 1].unshard(async_op=True)
                    y = inputs[-1] @ layer.weight.full.T
                inputs.append(np.maximum(y, 0) if index + 1 < len(layers) else y)
            dy = inputs[-1] - target
            for index in reversed(range(len(layers))):
                layer = layers[index]
                with tpfsdp.scope(layer):
                    layer.weight.add_grad(np.matmul(dy.T, inputs[index]))
                    dy = dy @ layer.weight.full
                    tpfsdp.reduce_gradients(layer)
                if index:
                    dy = dy * (inputs[index] > 0)
            tpfsdp.end_backward(model)
            sgd(model)
            model.zero_grad()
        return full_values(model)

    expected = train_reference(3, 5)[1]
    for values in tpfsdp.run_ranks(3, work):
        for found, value in zip(values, expected, strict=True):
            assert found.tobytes() == value.tobytes()


class Arena:
    """The program's own memory, as NumPy arrays."""

    def __init__(self) -> None:
        self.live: dict[str, np.ndarray] = {}
        self.acquired = 0
        self.fail = False

    def acquire(self, param: tpfsdp.Parameter, size_bytes: int, alignment_bytes: int) -> np.ndarray:
        if self.fail:
            raise MemoryError("the arena is full")
        assert size_bytes == 4 * int(np.prod(param.shape))
        self.acquired += 1
        self.live[param.name] = np.empty(size_bytes // 4, np.float32)
        return self.live[param.name]

    def release(self, param: tpfsdp.Parameter, memory: np.ndarray) -> None:
        assert self.live.pop(param.name) is memory


def test_full_parameters_in_memory_of_the_program() -> None:
    def work(rank: tpfsdp.Context) -> list[bytes]:
        arena = Arena()
        model = sharded_mlp(host_memory=arena)
        losses = train_sharded(rank, model, 5)
        assert arena.live == {}
        assert arena.acquired > 0
        layer = model.layers[0]
        assert layer.units[0].storage == tpfsdp.Storage.HOST
        with layer.unshard():
            assert address(layer.weight.full) == address(arena.live["layers.0.weight"])
            assert list(arena.live) == ["layers.0.weight"]
        assert arena.live == {}
        memory = model.memory_info()
        assert (memory.slot_bytes, memory.host_bytes) == (0, 0)
        return [loss.tobytes() for loss in losses]

    expected = [loss.tobytes() for loss in train_reference(2, 5)[0]]
    assert tpfsdp.run_ranks(2, work) == [expected] * 2


def test_an_exception_of_the_programs_memory_comes_out() -> None:
    def work(rank: tpfsdp.Context) -> None:
        arena = Arena()
        model = sharded_mlp(host_memory=arena)
        tpfsdp.prepare(model)
        arena.fail = rank.rank == 0
        x = micro_batch(0, 0, 1)[0]
        if rank.rank == 0:
            with pytest.raises(MemoryError, match="the arena is full") as caught:
                model(x)
            assert isinstance(caught.value.__cause__, tpfsdp.CallbackFailed)
        else:
            with pytest.raises(tpfsdp.Remote):
                model.run_backward(model(x))
        arena.fail = False
        model.reset_iter_state()
        model.run_backward(model(x))

    tpfsdp.run_ranks(2, work)


def test_jax_computes_on_full_parameters() -> None:
    jax = pytest.importorskip("jax")

    def work(rank: tpfsdp.Context) -> None:
        model = sharded_mlp()
        weight = model.layers[0].weight
        x = micro_batch(0, 0, 1)[0]
        with tpfsdp.scope(model):
            view = weight.full
            array = jax.dlpack.from_dlpack(view)
            assert array.unsafe_buffer_pointer() == address(view)
            found = np.asarray(array @ x.T)
            del array, view
        assert np.allclose(found, initial_values()[0] @ x.T, atol=1e-5)

    tpfsdp.run_ranks(2, work)


def test_memory_is_what_the_plan_says() -> None:
    def work(rank: tpfsdp.Context) -> None:
        model = sharded_mlp()
        tpfsdp.prepare(model)
        train_sharded(rank, model, 3)
        memory = model.memory_info()
        assert memory.peak_bytes == memory.planned_peak_bytes
        assert memory.total_bytes == (
            memory.shard_bytes + memory.grad_shard_bytes + memory.slot_bytes + memory.grad_slot_bytes
        )
        assert memory.spare_slot_count == 0
        with pytest.raises(tpfsdp.InvalidState):
            model.layers[0].memory_info()

    tpfsdp.run_ranks(2, work)
