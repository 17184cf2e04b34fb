# SPDX-License-Identifier: Apache-2.0
"""The transformer as a tree of sharded modules, and the ways in which a framework can drive it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

import tpfsdp
import transformer_math as math

# ---- How the library is driven: all that a framework does at the edges of its modules --------------------------------


class Drive(Protocol):
    """Runs a sharded module's ``forward`` or ``backward`` with its parameters full."""

    def forward(self, module: Any, *inputs: Any) -> Any: ...
    def backward(self, module: Any, *grads: Any) -> Any: ...
    def end_backward(self, root: Any) -> None: ...


class Manual:
    """For a framework with hooks of its own: it calls the library from them."""

    def forward(self, module: Any, *inputs: Any) -> Any:
        tpfsdp.pre_forward(module)
        outputs = module.forward(*inputs)
        tpfsdp.post_forward(module)
        return outputs

    def backward(self, module: Any, *grads: Any) -> Any:
        tpfsdp.pre_backward(module)
        grads = module.backward(*grads)
        tpfsdp.post_backward(module)
        return grads

    def end_backward(self, root: Any) -> None:
        tpfsdp.end_backward(root)


class Call:
    """For a framework that has modules but no hooks: the library's own calls do all of it."""

    def forward(self, module: Any, *inputs: Any) -> Any:
        return module(*inputs)

    def backward(self, module: Any, *grads: Any) -> Any:
        return module.run_backward(*grads)

    def end_backward(self, root: Any) -> None:
        """The outermost backward has done it."""


class Segment:
    """For a framework of functions and their vector-Jacobian products."""

    def forward(self, module: Any, *inputs: Any) -> Any:
        with tpfsdp.scope(module, recurse=False):
            return module.forward(*inputs)

    def backward(self, module: Any, *grads: Any) -> Any:
        with tpfsdp.scope(module, recurse=False):
            grads = module.backward(*grads)
            tpfsdp.reduce_gradients(module)
            return grads

    def end_backward(self, root: Any) -> None:
        tpfsdp.end_backward(root)


DRIVES = {"manual": Manual, "call": Call, "segment": Segment}

# ---- The model -------------------------------------------------------------------------------------------------------


def full(module: tpfsdp.Module) -> math.Arrays:
    """All values below, by name: views, not to be kept."""
    return {name: param.full for name, param in module.named_parameters()}


@contextlib.contextmanager
def gradients(module: tpfsdp.Module, accumulate: bool = False) -> Iterator[math.Arrays]:
    """The library's memory for the gradients of all values below; they count when the block ends."""
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(param.grad_buffer(accumulate)) for name, param in module.named_parameters()
        }


class Affine(tpfsdp.Module):
    def __init__(self, values: math.Arrays) -> None:
        super().__init__()
        self.weight = tpfsdp.Parameter(values["weight"])
        self.bias = tpfsdp.Parameter(values["bias"])


class Embedding(tpfsdp.Module):
    def __init__(self, values: math.Arrays) -> None:
        super().__init__()
        self.tokens = tpfsdp.Parameter(values["tokens"])
        self.positions = tpfsdp.Parameter(values["positions"])

    def forward(self, tokens: np.ndarray) -> np.ndarray:
        self.seen = tokens
        return math.embed(tokens, full(self))

    def backward(self, dx: np.ndarray) -> None:
        with gradients(self, accumulate=True) as g:  # the head's part of the tied gradient is there already
            math.embed_backward(dx, self.seen, g)


class Block(tpfsdp.Module):
    def __init__(self, values: math.Arrays, shape: math.Shape, drive: Drive) -> None:
        super().__init__()
        self.shape, self.drive = shape, drive
        for name in ("norm1", "qkv", "proj", "norm2", "up", "down"):
            self.add_module(name, Affine(math.part(values, name)))

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        y, self.saved = math.block(x, full(self), self.shape)
        return y

    def backward(self, dy: np.ndarray) -> np.ndarray:
        if self.saved is None:
            self.drive.forward(self, self.x)  # again: inside its backward that asks for the parameters, nothing else
        with gradients(self) as g:
            dx = math.block_backward(dy, self.saved, full(self), g, self.shape)
        self.saved = None
        return dx


class Head(tpfsdp.Module):
    def __init__(self, values: math.Arrays, tied: tpfsdp.Parameter) -> None:
        super().__init__()
        self.norm = Affine(math.part(values, "norm"))
        self.weight = tied

    def forward(self, x: np.ndarray, targets: np.ndarray) -> np.floating:
        loss, self.saved = math.head(x, targets, full(self))
        return loss

    def backward(self) -> np.ndarray:
        with gradients(self) as g:
            return math.head_backward(self.saved, full(self), g)


class Transformer(tpfsdp.Module):
    def __init__(self, values: math.Arrays, shape: math.Shape, drive: Drive, recompute: bool) -> None:
        super().__init__()
        self.drive, self.recompute = drive, recompute
        self.embed = Embedding(math.part(values, "embed"))
        self.blocks = tpfsdp.ModuleList(
            Block(math.part(values, f"blocks.{index}"), shape, drive) for index in range(shape.blocks)
        )
        self.head = Head(math.part(values, "head"), self.embed.tokens)

    def forward(self, tokens: np.ndarray, targets: np.ndarray) -> np.floating:
        x = self.embed.forward(tokens)
        for block in self.blocks:
            x = self.drive.forward(block, x)
            if self.recompute:
                block.saved = None  # its input is enough
        return self.head.forward(x, targets)

    def backward(self) -> None:
        dx = self.head.backward()
        for block in reversed(self.blocks):
            dx = self.drive.backward(block, dx)
        self.embed.backward(dx)

    def kept_bytes(self) -> int:
        """Of what the blocks keep for backward."""
        return sum(array.nbytes for block in self.blocks for array in (block.x, *(block.saved or ())))
