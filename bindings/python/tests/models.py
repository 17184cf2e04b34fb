# SPDX-License-Identifier: Apache-2.0
"""A small perceptron, sharded or in plain NumPy, with equal arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

import tpfsdp

SIZES = ((6, 10), (10, 7), (7, 3))  # of W ranks, some rows are uneven and some shards empty


def initial_values() -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.normal(0, 0.5, (n_out, n_in)).astype(np.float32) for n_in, n_out in SIZES]


def micro_batch(step: int, rank: int, world_size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1000 * step + rank)
    return rng.random((4, SIZES[0][0]), np.float32), rng.random((4, SIZES[-1][1]), np.float32)


class Linear(tpfsdp.Module):
    def __init__(self, weight: np.ndarray) -> None:
        super().__init__()
        self.weight = tpfsdp.Parameter(weight)

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return x @ self.weight.full.T

    def backward(self, dy: np.ndarray) -> np.ndarray:
        with self.weight.grad_buffer() as grad:
            np.matmul(dy.T, self.x, out=grad)
        return dy @ self.weight.full


class MLP(tpfsdp.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = tpfsdp.ModuleList(Linear(values) for values in initial_values())

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.hidden = []
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if index + 1 < len(SIZES):
                x = np.maximum(x, 0)
                self.hidden.append(x)
        return x

    def backward(self, dy: np.ndarray) -> np.ndarray:
        for index in reversed(range(len(SIZES))):
            dy = self.layers[index].run_backward(dy)
            if index:
                dy = dy * (self.hidden[index - 1] > 0)
        return dy


def sharded_mlp(**options: Any) -> MLP:
    model = MLP()
    for layer in model.layers:
        tpfsdp.fully_shard(layer, **options)
    return tpfsdp.fully_shard(model, **options)


def sgd(model: tpfsdp.Module) -> None:
    for param in model.parameters():
        assert param.grad is not None
        param.shard[...] -= np.float32(0.1) * param.grad


def train_sharded(rank: tpfsdp.Context, model: MLP, steps: int) -> list[np.float32]:
    losses = []
    for step in range(steps):
        x, target = micro_batch(step, rank.rank, rank.world_size)
        error = model(x) - target
        model.run_backward(error)
        sgd(model)
        model.zero_grad()
        losses.append(rank.group.all_reduce(np.float32((error**2).mean()), op="avg"))
    return losses


def train_reference(world_size: int, steps: int) -> tuple[list[np.float32], list[np.ndarray]]:
    """One process: micro-batches in rank order, sums left to right, scaled once."""
    values, losses, scale = initial_values(), [], np.float32(1.0 / world_size)
    for step in range(steps):
        loss_sum, sums = np.float32(0), []
        for rank in range(world_size):
            x, target = micro_batch(step, rank, world_size)
            inputs = [x]
            for index, weight in enumerate(values):
                x = inputs[-1] @ weight.T
                inputs.append(np.maximum(x, 0) if index + 1 < len(values) else x)
            error = dy = inputs[-1] - target
            grads = []
            for index in reversed(range(len(values))):
                grads.insert(0, np.matmul(dy.T, inputs[index]))
                dy = dy @ values[index]
                if index:
                    dy = dy * (inputs[index] > 0)
            loss = np.float32((error**2).mean())
            loss_sum = loss if rank == 0 else loss_sum + loss
            sums = grads if rank == 0 else [a + b for a, b in zip(sums, grads)]
        losses.append(loss_sum * scale)
        for weight, grad in zip(values, sums):
            weight -= np.float32(0.1) * (grad * scale)
    return losses, values


def full_values(model: tpfsdp.Module) -> list[np.ndarray]:
    with tpfsdp.scope(model):
        return [param.full.copy() for param in model.parameters()]
