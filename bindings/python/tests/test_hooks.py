# SPDX-License-Identifier: Apache-2.0
"""Hooks of every kind, forward methods, and manual mode."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from models import full_values, micro_batch, sgd, sharded_mlp, train_sharded

import tpfsdp


class Doubler(tpfsdp.Module):
    """y = 2 x w, with w of one element."""

    def __init__(self) -> None:
        super().__init__()
        self.w = tpfsdp.Parameter(np.full(1, 3, np.float32))

    def forward(self, x: Any, scale: Any = 2) -> Any:
        if x is None:
            raise ValueError("no input")
        self.x, self.scale = x, scale
        return scale * x * self.w.full[0]

    def backward(self, dy: Any) -> Any:
        with self.w.grad_buffer() as grad:
            grad[...] = self.scale * self.x * dy
        return self.scale * dy * self.w.full[0]

    def encode(self, x: Any) -> Any:
        """Its own method."""
        return x + self.w.full[0]


@pytest.fixture
def module(alone: tpfsdp.Context) -> Doubler:
    return tpfsdp.fully_shard(Doubler())


def test_hooks_run_in_order_and_may_change_what_flows(module: Doubler) -> None:
    seen: list[str] = []
    module.register_forward_pre_hook(lambda m, args: seen.append(f"pre {args}"))
    first = module.register_forward_pre_hook(lambda m, args: args[0] + 1, prepend=True)
    module.register_forward_pre_hook(lambda m, args, kwargs: ((args[0] * 10,), {"scale": 1}), with_kwargs=True)
    module.register_forward_hook(lambda m, args, kwargs, out: seen.append(f"post {kwargs} {out}"), with_kwargs=True)
    module.register_forward_hook(lambda m, args, out: -out)
    module.register_full_backward_pre_hook(lambda m, grads: (grads[0] + 0.5,))
    module.register_full_backward_hook(lambda m, grad_in, grad_out: seen.append(f"back {float(grad_in[0])} {grad_out}"))
    module.register_full_backward_hook(lambda m, grad_in, grad_out: grad_in[0] * 100)
    assert module(1.0) == -60
    assert module.run_backward(1.0) == 450
    assert seen == ["pre (2.0,)", "post {'scale': 1} 60.0", "back 4.5 (1.5,)"]
    assert module.w.grad is not None
    assert module.w.grad[0] == 30
    first.remove()
    first.remove()
    assert module(1.0) == -30


def test_a_hook_that_fails_raises_its_own_exception(module: Doubler) -> None:
    ran: list[Any] = []

    def fails(*args: Any) -> None:
        raise KeyError("from the hook")

    module.register_forward_hook(lambda m, args, out: ran.append(out), always_call=True)
    with pytest.raises(ValueError, match="no input"):
        module(None)
    assert ran == [None]
    module.reset_iter_state()
    handle = module.register_forward_pre_hook(fails)
    with pytest.raises(KeyError, match="from the hook"):
        module(1.0)
    handle.remove()
    module.reset_iter_state()
    assert module(1.0) == 6


def test_hooks_do_not_keep_a_module_alive(alone: tpfsdp.Context) -> None:
    module = Doubler()
    module.register_forward_hook(lambda m, args, out: None)
    gone = weakref.ref(module)
    del module
    gc.collect()
    assert gone() is None


def test_register_fsdp_forward_method(module: Doubler) -> None:
    with pytest.raises(tpfsdp.InvalidState, match="w"):
        module.encode(1.0)
    tpfsdp.register_fsdp_forward_method(module, "encode")
    assert module.encode(1.0) == 4
    assert module.encode.__doc__ == "Its own method."
    assert module.w.is_unsharded  # the root keeps its parameters for a backward
    with pytest.raises(tpfsdp.NotFound, match="decode"):
        tpfsdp.register_fsdp_forward_method(module, "decode")
    tpfsdp.register_fsdp_forward_method(Doubler(), "decode")  # not sharded: no effect


def test_manual_mode_equals_module_calls() -> None:
    def manual(rank: tpfsdp.Context) -> list[np.ndarray]:
        model = sharded_mlp()
        for step in range(3):
            x, target = micro_batch(step, rank.rank, rank.world_size)
            hidden = []
            tpfsdp.pre_forward(model)
            for index, layer in enumerate(model.layers):
                tpfsdp.pre_forward(layer)
                x = layer.forward(x)
                tpfsdp.post_forward(layer)
                if index < 2:
                    x = np.maximum(x, 0)
                    hidden.append(x)
            tpfsdp.post_forward(model)
            dy = x - target
            tpfsdp.pre_backward(model)
            for index in (2, 1, 0):
                tpfsdp.pre_backward(model.layers[index])
                dy = model.layers[index].backward(dy)
                tpfsdp.post_backward(model.layers[index])
                if index:
                    dy = dy * (hidden[index - 1] > 0)
            tpfsdp.end_backward(model)
            sgd(model)
            model.zero_grad()
        return full_values(model)

    def called(rank: tpfsdp.Context) -> list[np.ndarray]:
        model = sharded_mlp()
        train_sharded(rank, model, 3)
        return full_values(model)

    for mine, theirs in zip(tpfsdp.run_ranks(2, manual)[0], tpfsdp.run_ranks(2, called)[0], strict=True):
        assert (mine == theirs).all()


def test_a_forward_that_failed_in_manual_mode(module: Doubler) -> None:
    ran: list[str] = []
    module.register_forward_hook(lambda m, args, out: ran.append("hook"))
    module.register_forward_hook(lambda m, args, out: ran.append("always"), always_call=True)
    tpfsdp.pre_forward(module)
    tpfsdp.fail_forward(module)
    assert ran == ["always"]
