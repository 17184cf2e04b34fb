# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the classifier, on plain arrays: written by hand, and shared by the sharded trainer and by the
reference, so that equal shapes give equal bits."""

from __future__ import annotations

import numpy as np

LAYERS = (("fc1", 64, 128), ("fc2", 128, 64), ("fc3", 64, 10))


def initial_values() -> dict[str, np.ndarray]:
    """Weights ``[out, in]`` and biases ``[out]`` by name, the same on every rank."""
    rng = np.random.default_rng(0)
    values = {}
    for name, n_in, n_out in LAYERS:
        values[f"{name}.weight"] = rng.normal(0, (2 / n_in) ** 0.5, (n_out, n_in)).astype(np.float32)
        values[f"{name}.bias"] = np.zeros(n_out, np.float32)
    return values


def linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return x @ weight.T + bias


def linear_backward(
    dy: np.ndarray, x: np.ndarray, weight: np.ndarray, out_weight: np.ndarray, out_bias: np.ndarray
) -> np.ndarray:
    """Writes the gradients of weight and bias, and gives that of ``x``."""
    np.matmul(dy.T, x, out=out_weight)
    np.sum(dy, axis=0, out=out_bias)
    return dy @ weight


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, np.float32(0))


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> tuple[np.float32, np.ndarray]:
    """The mean loss, and the gradient of the logits."""
    rows = np.arange(len(labels))
    shifted = logits - logits.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    sums = exponentials.sum(axis=1, keepdims=True)
    loss = np.mean(np.log(sums[:, 0]) - shifted[rows, labels], dtype=np.float32)
    dlogits = exponentials / sums
    dlogits[rows, labels] -= np.float32(1)
    dlogits /= np.float32(len(labels))
    return loss, dlogits


class AdamW:
    """Element by element, so an update of shards is the update of the whole, bit for bit."""

    def __init__(self, lr: float = 2e-3, betas: tuple[float, float] = (0.9, 0.999), decay: float = 0.01) -> None:
        self.lr, self.betas, self.decay = lr, betas, decay
        self.eps = np.float32(1e-8)
        self.step_count = 0
        self.moments: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def begin_step(self) -> None:
        self.step_count += 1

    def update(self, name: str, values: np.ndarray, grad: np.ndarray) -> None:
        """Changes ``values`` in place."""
        if name not in self.moments:
            self.moments[name] = (np.zeros_like(values), np.zeros_like(values))
        first, second = self.moments[name]
        one, two = self.betas
        first *= np.float32(one)
        first += np.float32(1 - one) * grad
        second *= np.float32(two)
        second += np.float32(1 - two) * (grad * grad)
        unbiased_first = first / np.float32(1 - one**self.step_count)
        unbiased_second = second / np.float32(1 - two**self.step_count)
        values *= np.float32(1 - self.lr * self.decay)
        values -= np.float32(self.lr) * (unbiased_first / (np.sqrt(unbiased_second) + self.eps))

    def state_bytes(self) -> int:
        return sum(first.nbytes + second.nbytes for first, second in self.moments.values())
