# SPDX-License-Identifier: Apache-2.0
"""Manual mode: a program with hooks of its own calls the library before and after each module. ``module(x)`` and
``module.run_backward(dy)`` do all of it by themselves.

What need not wait is done with the interpreter lock held; only the plain forms give it up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import capi

if TYPE_CHECKING:
    from .module import Module


def pre_forward(module: Module) -> None:
    """Before a module's forward: its parameters are full on return. Collective, if anything is gathered."""
    if not capi.module_try_pre_forward(module._handle):
        capi.module_pre_forward(module._handle)


def post_forward(module: Module) -> None:
    """After it: frees what ``reshard_after_forward`` says. Never waits."""
    capi.module_post_forward(module._handle)


def fail_forward(module: Module) -> None:
    """Instead of :func:`post_forward` when the forward failed: only hooks with ``always_call`` run."""
    capi.module_fail_forward(module._handle)


def pre_backward(module: Module) -> None:
    """Before a module's backward, when the first gradient of an output is there: parameters are full, gradient memory
    is there, the next unit is prefetched. Again: no effect. Collective."""
    if not capi.module_try_pre_backward(module._handle):
        capi.module_pre_backward(module._handle)


def post_backward(module: Module) -> None:
    """After it, all gradients handed over: frees parameters, starts the reduction. May be left out;
    :func:`end_backward` makes up for it. Collective."""
    if not capi.module_try_post_backward(module._handle):
        capi.module_post_backward(module._handle)


def end_backward(root: Module) -> None:
    """Once at the end of each backward: finishes all averages; then ``param.grad`` is there and shards may be written.
    ``root.run_backward`` does it by itself. Collective."""
    if not capi.module_try_end_backward(root._handle):
        capi.module_end_backward(root._handle)
