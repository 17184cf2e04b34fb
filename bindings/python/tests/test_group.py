# SPDX-License-Identifier: Apache-2.0
"""Collectives on arrays in and out, splits and meshes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tpfsdp

DTYPES = ["float32", "float64", "float16", ml_dtypes.bfloat16, "int32", "int64", "uint8"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reductions(dtype: Any) -> None:
    def work(rank: tpfsdp.Context) -> None:
        group, mine = rank.group, np.array([rank.rank + 1, 2 * rank.rank, 3, 7, 1, 0], dtype)
        everything = [np.array([r + 1, 2 * r, 3, 7, 1, 0], np.float64) for r in range(3)]
        for op, expected in (("sum", sum(everything)), ("min", np.min(everything, 0)), ("max", np.max(everything, 0))):
            found = group.all_reduce(mine, op=op)
            assert found.dtype == mine.dtype
            assert found.astype(np.float64).tolist() == expected.tolist()
            part = group.reduce_scatter(mine, op=op)
            assert part.astype(np.float64).tolist() == expected[2 * rank.rank : 2 * rank.rank + 2].tolist()
        in_place = mine.copy()
        assert group.all_reduce(in_place, in_place) is in_place
        assert in_place.astype(np.float64).tolist() == sum(everything).tolist()

    tpfsdp.run_ranks(3, work)


def test_numbers_and_averages() -> None:
    def work(rank: tpfsdp.Context) -> None:
        mean = rank.group.all_reduce(np.float32(rank.rank), op="avg")
        assert isinstance(mean, np.float32)
        assert mean == 1.5
        assert rank.group.all_gather(np.float64(rank.rank)).tolist() == [0, 1, 2, 3]

    tpfsdp.run_ranks(4, work)


def test_gather_and_broadcast() -> None:
    def work(rank: tpfsdp.Context) -> None:
        group = rank.group
        found = group.all_gather(np.full((2, 3), rank.rank, np.int16))
        assert found.shape == (6, 3)
        assert found[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
        uneven = group.all_gather(np.full((rank.rank, 2), rank.rank, np.float32), counts=[0, 2, 4])
        assert uneven.tolist() == [[1, 1], [2, 2], [2, 2]]
        in_place = np.zeros((3, 2), np.float32)
        in_place[rank.rank] = rank.rank + 1
        group.all_gather(in_place[rank.rank], in_place)
        assert in_place[:, 1].tolist() == [1, 2, 3]
        data = np.full(5, rank.rank, ml_dtypes.bfloat16)
        assert group.broadcast(data, 2) is data
        assert (data == 2).all()

    tpfsdp.run_ranks(3, work)


def test_works() -> None:
    def work(rank: tpfsdp.Context) -> None:
        works = [rank.group.all_reduce(np.float32(rank.rank + i), op="max", async_op=True) for i in range(5)]
        assert [float(one.wait()) for one in works] == [1, 2, 3, 4, 5]
        assert all(one.test() for one in works)
        assert rank.group.all_gather(np.ones(2), async_op=True).wait().tolist() == [1, 1, 1, 1]

    tpfsdp.run_ranks(2, work)


def test_bad_arguments_are_told_to_all() -> None:
    def work(rank: tpfsdp.Context) -> None:
        with pytest.raises((tpfsdp.InvalidArgument, tpfsdp.Mismatch, tpfsdp.Remote)):
            rank.group.all_gather(np.zeros(3), np.zeros(5))
        rank.group.reset()
        frozen = np.zeros(3)
        frozen.flags.writeable = False
        with pytest.raises((tpfsdp.InvalidArgument, tpfsdp.Remote)):
            rank.group.all_reduce(np.zeros(3), frozen)
        rank.group.reset()
        with pytest.raises((tpfsdp.Unsupported, tpfsdp.Remote)):
            rank.group.all_reduce(np.zeros((4, 4)).T)

    tpfsdp.run_ranks(2, work)


def test_jax_arrays_go_in() -> None:
    jnp = pytest.importorskip("jax.numpy")

    def work(rank: tpfsdp.Context) -> None:
        assert rank.group.all_reduce(jnp.full(3, rank.rank, jnp.float32)).tolist() == [1, 1, 1]

    tpfsdp.run_ranks(2, work)


def test_split() -> None:
    def work(rank: tpfsdp.Context) -> None:
        half = rank.group.split(rank.rank % 2, -rank.rank, "half")
        assert half is not None
        assert half.global_ranks == ((2, 0) if rank.rank % 2 == 0 else (3, 1))
        assert half.all_reduce(np.int32(rank.rank)) == (2 if rank.rank % 2 == 0 else 4)
        assert (rank.group.split(-1) is None) == True  # noqa: E712
        assert '"' in half.dump_recorder()
        assert half.sequence >= 1

    tpfsdp.run_ranks(4, work)


def test_meshes() -> None:
    def work(rank: tpfsdp.Context) -> None:
        mesh = tpfsdp.init_device_mesh("cpu", (2, 3), mesh_dim_names=("dp", "tp"))
        assert (mesh.shape, mesh.ndim, mesh.size(), mesh.numel(), mesh.size(1)) == ((2, 3), 2, 6, 6, 3)
        assert mesh.mesh_dim_names == ("dp", "tp")
        assert mesh.mesh == [[0, 1, 2], [3, 4, 5]]
        assert mesh.get_coordinate() == list(divmod(rank.rank, 3))
        assert mesh.get_rank() == rank.rank
        assert mesh.get_local_rank("tp") == rank.rank % 3
        dp = mesh["dp"]
        assert dp.mesh == [rank.rank % 3, rank.rank % 3 + 3]
        assert dp.get_local_rank() == rank.rank // 3
        assert dp.get_group().all_reduce(np.int64(rank.rank)) == 2 * (rank.rank % 3) + 3
        assert mesh.get_group("dp").global_ranks == dp.get_group(0).global_ranks
        assert mesh.get_group(-1) is mesh.get_group("tp")
        assert mesh["tp", "dp"].shape == (3, 2)
        assert mesh["tp", "dp"].mesh == [[0, 3], [1, 4], [2, 5]]
        flat = mesh["dp", "tp"]._flatten("all")
        assert (flat.shape, flat.mesh_dim_names, flat.mesh) == ((6,), ("all",), [0, 1, 2, 3, 4, 5])
        again = tpfsdp.DeviceMesh.from_group(mesh.get_all_groups(), mesh_dim_names=("a", "b"))
        assert again.shape == (2, 3)
        assert tpfsdp.DeviceMesh("cpu", list(range(6))).shape == (6,)
        with pytest.raises(tpfsdp.NotFound, match="pp"):
            mesh["pp"]
        with pytest.raises(tpfsdp.InvalidArgument):
            mesh.get_group()

    tpfsdp.run_ranks(6, work)


def test_meshes_that_do_not_fit(alone: tpfsdp.Context) -> None:
    with pytest.raises(tpfsdp.InvalidArgument):
        tpfsdp.init_device_mesh("cpu", (2, 3))
    with pytest.raises(tpfsdp.Unsupported, match="cuda"):
        tpfsdp.init_device_mesh("cuda", (1,))
    with pytest.raises(tpfsdp.Unsupported, match="backend_override"):
        tpfsdp.init_device_mesh("cpu", (1,), backend_override="x")
    with pytest.raises(tpfsdp.Unsupported):
        tpfsdp.DeviceMesh("cpu", [1])
