# SPDX-License-Identifier: Apache-2.0
"""What a sharded run must equal. The unsharded run, in plain NumPy and without tpfsdp: one process takes the
micro-batches of all ranks in rank order, sums their gradients left to right, scales once, and applies the same
optimizer. And the bytes that a rank may hold."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

import transformer_math as math
from digits_math import AdamW
from transformer_data import Text


def train(
    text: Text, shape: math.Shape, world_size: int, steps: int, pieces: int
) -> tuple[list[np.floating], math.Arrays]:
    """The losses, averaged as ranks average them, and the values at the end."""
    values, optimizer, losses = math.initial_values(shape), AdamW(), []
    scale = np.float32(1.0 / world_size)
    for step in range(steps):
        loss_sum, grad_sums = None, {}
        for rank in range(world_size):
            loss, grads = math.loss_and_gradients(values, *text.micro_batch(step, rank, pieces, shape.length), shape)
            loss_sum = loss if rank == 0 else loss_sum + loss
            grad_sums = grads if rank == 0 else {name: grad_sums[name] + grad for name, grad in grads.items()}
        losses.append(loss_sum * scale)
        optimizer.lr = math.learning_rate(step, steps)
        optimizer.begin_step()
        for name, grad in grad_sums.items():
            optimizer.update(name, values[name], grad * scale)
    return losses, values


def max_ulp(found: math.Arrays, expected: math.Arrays) -> int:
    """The largest difference in units of the last place: floats as integers in their order."""

    def places(values: np.ndarray) -> np.ndarray:
        bits = np.ascontiguousarray(values, np.float32).view(np.int32).astype(np.int64)
        return np.where(bits < 0, -(2**31) - bits, bits)

    if found.keys() != expected.keys():
        raise ValueError(f"values of {sorted(found)} are compared with those of {sorted(expected)}")
    return max(int(np.abs(places(found[name]) - places(expected[name])).max(initial=0)) for name in expected)


def peak_bytes(shape: math.Shape, world_size: int) -> int:
    """Rank 0's parameters, gradients and optimizer state at their peak: shards of both, two moments of each shard, the
    slots of full parameters and of full gradients. The root has a slot for itself; blocks take two in turn."""

    def laid_out(sizes: Iterable[int]) -> int:
        """Back to back, each at a multiple of 64 bytes, from 64 KiB on of 256."""
        end = 0
        for size in sizes:
            bound = 256 if size >= 65536 else 64
            end = -(-end // bound) * bound + size
        return end

    shards, moments, slots = 0, 0, 0
    names = math.initial_values(shape)
    root = {name: value for name, value in names.items() if not name.startswith("blocks.")}
    for count, taking, unit in ((1, 1, root), (shape.blocks, 2, math.part(names, "blocks.0"))):
        own = [-(-len(value) // world_size) * (value.nbytes // len(value)) for value in unit.values()]
        shards += count * laid_out(own)
        moments += count * 2 * sum(own)
        slots += taking * laid_out(value.nbytes for value in unit.values())
    return 2 * shards + moments + 2 * slots
