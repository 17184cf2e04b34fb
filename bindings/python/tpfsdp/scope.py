# SPDX-License-Identifier: Apache-2.0
"""Full parameters outside module calls: segment mode for functional programs, inspection, and the write window."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from . import capi
from ._handle import options
from .module import Module


@contextlib.contextmanager
def scope(*modules: Module, recurse: bool = True) -> Iterator[None]:
    """Inside it ``param.full``, ``grad_buffer`` and ``add_grad`` of the modules' parameters work. Scopes nest.
    Collective. PyTorch: ``summon_full_params``.

    Segment mode, for programs without module calls: for each block in order, run its function in a scope; then for each
    block in reverse, run its vector-Jacobian product in a scope, hand the gradients over and call
    :func:`reduce_gradients`; at last :func:`~tpfsdp.end_backward` on the root. ``block.unshard(async_op=True)`` for
    the next block, before this one computes, overlaps its gather.

    Args:
        recurse: units below the modules, too.
    """
    toggle = capi.TOGGLE_ON if recurse else capi.TOGGLE_OFF
    handle = capi.scope_open([module._handle for module in modules], options(capi.scope_options(), recurse=toggle))
    try:
        yield
        capi.scope_close(handle)
    finally:
        capi.handle_release(handle)  # closes one that is open still


def prepare(root: Module) -> None:
    """Does now what the first step would do: settles the root, compares what the ranks start with, allocates. Programs
    in segment mode call it once. Collective.

    Raises:
        Mismatch: naming the parameter and the ranks that differ.
    """
    capi.root_prepare(root._handle)


def reduce_gradients(module: Module) -> None:
    """Segment mode, in a scope: starts to average the gradients handed over below ``module``. Collective."""
    capi.grad_reduce(module._handle)


@contextlib.contextmanager
def shards_write(root: Module) -> Iterator[None]:
    """Inside it the shards of the whole tree may be written, at any time outside a step: averages of weights, editing,
    steps after an evaluation. After a backward they may be written without it. Waits until no peer reads them.

    Raises:
        InvalidState: inside a step, or a view of full parameters is held: the text lists names.
    """
    capi.shards_begin_write(root._handle)
    try:
        yield
    finally:
        capi.shards_end_write(root._handle)


@contextlib.contextmanager
def no_grad(module: Module) -> Iterator[None]:
    """No backward will follow the forwards inside. PyTorch: ``no_grad``."""
    capi.module_set_grad_enabled(module._handle, False)
    try:
        yield
    finally:
        capi.module_set_grad_enabled(module._handle, True)
