# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of a character-level transformer on plain arrays, forward and backward by hand. Both the sharded
trainer and the reference call these functions, so equal shapes give equal bits.

    python examples/python/transformer_math.py       # compares every gradient with a numerical one, in float64

A layer's values are ``p``, by name, and its gradients ``g``, by the same names. A backward writes every element of
them, but for the embedding's, which adds: the token values are tied to the output, whose gradient is there already.
Activations are ``[pieces * length, width]``.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

Arrays = dict[str, np.ndarray]
Saved = tuple[np.ndarray, ...]
"""What a forward keeps for its backward."""


@dataclasses.dataclass(frozen=True)
class Shape:
    symbols: int
    length: int = 64
    width: int = 96
    heads: int = 4
    blocks: int = 4


def initial_values(shape: Shape) -> Arrays:
    """By the names of the module tree, the same on every rank. Weights are ``[out, in]``."""
    rng = np.random.default_rng(0)
    values: Arrays = {}

    def matrix(name: str, rows: int, columns: int, scale: float = 1) -> None:
        values[name] = rng.normal(0, scale * columns**-0.5, (rows, columns)).astype(np.float32)

    def linear(name: str, n_in: int, n_out: int, scale: float = 1) -> None:
        matrix(f"{name}.weight", n_out, n_in, scale)
        values[f"{name}.bias"] = np.zeros(n_out, np.float32)

    def norm(name: str) -> None:
        values[f"{name}.weight"] = np.ones(shape.width, np.float32)
        values[f"{name}.bias"] = np.zeros(shape.width, np.float32)

    matrix("embed.tokens", shape.symbols, shape.width)
    matrix("embed.positions", shape.length, shape.width)
    into_sum = (2 * shape.blocks) ** -0.5  # two terms of each block are added to the activations
    for index in range(shape.blocks):
        norm(f"blocks.{index}.norm1")
        linear(f"blocks.{index}.qkv", shape.width, 3 * shape.width)
        linear(f"blocks.{index}.proj", shape.width, shape.width, into_sum)
        norm(f"blocks.{index}.norm2")
        linear(f"blocks.{index}.up", shape.width, 4 * shape.width)
        linear(f"blocks.{index}.down", 4 * shape.width, shape.width, into_sum)
    norm("head.norm")
    return values


def learning_rate(step: int, steps: int, peak: float = 3e-3, rising: int = 20) -> float:
    """Up over the first steps, then down to a twentieth along half a cosine."""
    up = min(1.0, (step + 1) / rising)
    return peak * up * (0.525 + 0.475 * math.cos(math.pi * step / steps))


# ---- Layers ----------------------------------------------------------------------------------------------------------


def linear(x: np.ndarray, p: Arrays, name: str) -> np.ndarray:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def linear_backward(dy: np.ndarray, x: np.ndarray, p: Arrays, g: Arrays, name: str) -> np.ndarray:
    np.matmul(dy.T, x, out=g[f"{name}.weight"])
    np.sum(dy, axis=0, out=g[f"{name}.bias"])
    return dy @ p[f"{name}.weight"]


def norm(x: np.ndarray, p: Arrays, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Also what its backward needs: the normed rows, and the factors that normed them."""
    centred = x - x.mean(axis=1, keepdims=True)
    factor = 1 / np.sqrt(np.square(centred).mean(axis=1, keepdims=True) + 1e-5)
    normed = centred * factor
    return normed * p[f"{name}.weight"] + p[f"{name}.bias"], normed, factor


def norm_backward(
    dy: np.ndarray, normed: np.ndarray, factor: np.ndarray, p: Arrays, g: Arrays, name: str
) -> np.ndarray:
    np.sum(dy * normed, axis=0, out=g[f"{name}.weight"])
    np.sum(dy, axis=0, out=g[f"{name}.bias"])
    d = dy * p[f"{name}.weight"]
    along = (d * normed).mean(axis=1, keepdims=True)
    return (d - d.mean(axis=1, keepdims=True) - normed * along) * factor


def gelu(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In its form with tanh, which is saved."""
    tanh = np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x * x * x))
    return 0.5 * x * (1 + tanh), tanh


def gelu_backward(dy: np.ndarray, x: np.ndarray, tanh: np.ndarray) -> np.ndarray:
    inner = (2 / np.pi) ** 0.5 * (1 + 3 * 0.044715 * x * x)
    return dy * 0.5 * (1 + tanh + x * (1 - tanh * tanh) * inner)


def _heads(qkv: np.ndarray, shape: Shape) -> np.ndarray:
    """A view of ``[pieces * length, n * width]`` as ``[n, pieces, heads, length, width / heads]``."""
    parts = qkv.shape[1] // shape.width
    split = qkv.reshape(-1, shape.length, parts, shape.heads, shape.width // shape.heads)
    return split.transpose(2, 0, 3, 1, 4)


def attention(qkv: np.ndarray, shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """What each position takes from itself and those before it, and how much of each."""
    q, k, v = _heads(qkv, shape)
    scores = q @ k.swapaxes(2, 3)
    scores *= (shape.width // shape.heads) ** -0.5
    scores += np.triu(np.full((shape.length, shape.length), -np.inf, qkv.dtype), 1)
    shares = np.exp(scores - scores.max(axis=3, keepdims=True))
    shares /= shares.sum(axis=3, keepdims=True)
    return (shares @ v).swapaxes(1, 2).reshape(-1, shape.width), shares


def attention_backward(dy: np.ndarray, qkv: np.ndarray, shares: np.ndarray, shape: Shape) -> np.ndarray:
    (q, k, v), (dy,) = _heads(qkv, shape), _heads(dy, shape)
    dqkv = np.empty_like(qkv)
    dq, dk, dv = _heads(dqkv, shape)
    dshares = dy @ v.swapaxes(2, 3)
    dscores = shares * (dshares - (dshares * shares).sum(axis=3, keepdims=True))
    dscores *= (shape.width // shape.heads) ** -0.5
    np.matmul(dscores, k, out=dq)
    np.matmul(dscores.swapaxes(2, 3), q, out=dk)
    np.matmul(shares.swapaxes(2, 3), dy, out=dv)
    return dqkv


# ---- The model's parts -----------------------------------------------------------------------------------------------


def embed(tokens: np.ndarray, p: Arrays) -> np.ndarray:
    return (p["tokens"][tokens] + p["positions"]).reshape(tokens.size, -1)


def embed_backward(dx: np.ndarray, tokens: np.ndarray, g: Arrays) -> None:
    """Adds."""
    np.add.at(g["tokens"], tokens.ravel(), dx)
    g["positions"] += dx.reshape(*tokens.shape, -1).sum(axis=0)


def block(x: np.ndarray, p: Arrays, shape: Shape) -> tuple[np.ndarray, Saved]:
    a, *norm1 = norm(x, p, "norm1")
    qkv = linear(a, p, "qkv")
    mixed, shares = attention(qkv, shape)
    x = x + linear(mixed, p, "proj")
    b, *norm2 = norm(x, p, "norm2")
    up = linear(b, p, "up")
    active, tanh = gelu(up)
    return x + linear(active, p, "down"), (*norm1, a, qkv, shares, mixed, *norm2, b, up, tanh, active)


def block_backward(dy: np.ndarray, saved: Saved, p: Arrays, g: Arrays, shape: Shape) -> np.ndarray:
    normed1, factor1, a, qkv, shares, mixed, normed2, factor2, b, up, tanh, active = saved
    d = gelu_backward(linear_backward(dy, active, p, g, "down"), up, tanh)
    dx = dy + norm_backward(linear_backward(d, b, p, g, "up"), normed2, factor2, p, g, "norm2")
    d = attention_backward(linear_backward(dx, mixed, p, g, "proj"), qkv, shares, shape)
    return dx + norm_backward(linear_backward(d, a, p, g, "qkv"), normed1, factor1, p, g, "norm1")


def head(x: np.ndarray, targets: np.ndarray, p: Arrays) -> tuple[np.floating, Saved]:
    """The mean loss in nats. Its weight is the embedding's."""
    y, normed, factor = norm(x, p, "norm")
    logits = y @ p["weight"].T
    logits -= logits.max(axis=1, keepdims=True)
    shares = np.exp(logits)
    sums = shares.sum(axis=1, keepdims=True)
    shares /= sums
    rows = np.arange(targets.size)
    loss = (np.log(sums[:, 0]) - logits[rows, targets.ravel()]).mean()
    shares[rows, targets.ravel()] -= 1  # now the gradient of the logits, but for the mean
    return loss, (normed, factor, y, shares)


def head_backward(saved: Saved, p: Arrays, g: Arrays) -> np.ndarray:
    normed, factor, y, dlogits = saved
    dlogits = dlogits / len(dlogits)
    np.matmul(dlogits.T, y, out=g["weight"])
    return norm_backward(dlogits @ p["weight"], normed, factor, p, g, "norm")


# ---- The whole model, unsharded --------------------------------------------------------------------------------------


def part(values: Arrays, name: str) -> Arrays:
    """What lies below a name. The head has the tied weight, too."""
    below = {key.removeprefix(f"{name}."): value for key, value in values.items() if key.startswith(f"{name}.")}
    return below | {"weight": values["embed.tokens"]} if name == "head" else below


def loss_and_gradients(
    values: Arrays, tokens: np.ndarray, targets: np.ndarray, shape: Shape
) -> tuple[np.floating, Arrays]:
    grads = {name: np.zeros_like(value) for name, value in values.items()}
    blocks = [f"blocks.{index}" for index in range(shape.blocks)]
    kept = {}
    x = embed(tokens, part(values, "embed"))
    for name in blocks:
        x, kept[name] = block(x, part(values, name), shape)
    loss, saved = head(x, targets, part(values, "head"))
    dx = head_backward(saved, part(values, "head"), part(grads, "head"))
    for name in reversed(blocks):
        dx = block_backward(dx, kept[name], part(values, name), part(grads, name), shape)
    embed_backward(dx, tokens, part(grads, "embed"))
    return loss, grads


def check_gradients(step: float = 1e-5) -> float:
    """The largest difference between a gradient and the numerical one, relative to the largest element of its
    parameter's."""
    shape = Shape(symbols=7, length=5, width=8, heads=2, blocks=2)
    rng = np.random.default_rng(1)
    values = {name: rng.normal(0, 0.5, value.shape) for name, value in initial_values(shape).items()}
    tokens, targets = rng.integers(0, shape.symbols, (2, 3, shape.length))
    _, grads = loss_and_gradients(values, tokens, targets, shape)
    worst = 0.0
    for name, value in values.items():
        numerical = np.empty_like(value)
        for place in np.ndindex(value.shape):
            middle = value[place]
            losses = []
            for value[place] in (middle - step, middle + step):
                losses.append(loss_and_gradients(values, tokens, targets, shape)[0])
            value[place] = middle
            numerical[place] = (losses[1] - losses[0]) / (2 * step)
        difference = np.abs(grads[name] - numerical).max() / np.abs(numerical).max()
        print(f"{name:<24} {difference:.1e}")
        worst = max(worst, difference)
    return worst


if __name__ == "__main__":
    worst = check_gradients()
    print(f"largest relative difference {worst:.1e}")
    raise SystemExit(1 if worst > 1e-6 else 0)
