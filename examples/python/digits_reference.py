# SPDX-License-Identifier: Apache-2.0
"""The unsharded run, in plain NumPy and without tpfsdp: one process takes the micro-batches of all ranks in rank order,
sums their gradients left to right, scales once, and applies the same optimizer. A sharded run must equal it bit for
bit."""

from __future__ import annotations

import numpy as np

import digits_math as math
from digits_data import Digits


def _micro_batch(
    values: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray
) -> tuple[np.float32, dict[str, np.ndarray]]:
    """Loss and gradients of one micro-batch."""
    inputs, outputs = [], []
    for index, (name, _, _) in enumerate(math.LAYERS):
        inputs.append(math.relu(outputs[-1]) if index else x)
        outputs.append(math.linear(inputs[-1], values[f"{name}.weight"], values[f"{name}.bias"]))
    loss, dy = math.cross_entropy(outputs[-1], y)
    grads = {name: np.empty_like(value) for name, value in values.items()}
    for index in reversed(range(len(math.LAYERS))):
        name = math.LAYERS[index][0]
        weight, bias = f"{name}.weight", f"{name}.bias"
        dy = math.linear_backward(dy, inputs[index], values[weight], grads[weight], grads[bias])
        if index:
            dy = dy * (inputs[index] > 0)
    return loss, grads


def train(data: Digits, world_size: int, steps: int, batch: int) -> tuple[list[np.float32], dict[str, np.ndarray]]:
    """The losses, averaged as ranks average them, and the values at the end."""
    values, optimizer, losses = math.initial_values(), math.AdamW(), []
    scale = np.float32(1.0 / world_size)
    for step in range(steps):
        loss_sum, grad_sums = np.float32(0), {}
        for rank in range(world_size):
            loss, grads = _micro_batch(values, *data.micro_batch(step, rank, world_size, batch))
            loss_sum = loss if rank == 0 else loss_sum + loss
            grad_sums = grads if rank == 0 else {name: grad_sums[name] + grad for name, grad in grads.items()}
        losses.append(loss_sum * scale)
        optimizer.begin_step()
        for name, grad in grad_sums.items():
            optimizer.update(name, values[name], grad * scale)
    return losses, values
