# SPDX-License-Identifier: Apache-2.0
"""Hooks around a module's forward and backward. The library keeps them, in order, and says when they run; what flows
through the module is here."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import capi
from ._handle import options, shared
from .parameter import RemovableHandle

if TYPE_CHECKING:
    from .module import Module


class Call:
    """One forward or backward that is running: what its hooks see, and may replace."""

    __slots__ = ("args", "kwargs", "result")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args = args
        self.kwargs = kwargs
        self.result: Any = None


def as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def before_forward(hook: Callable[..., Any], with_kwargs: bool) -> Callable[[Module, Call], None]:
    def run(module: Module, call: Call) -> None:
        if with_kwargs:
            changed = hook(module, call.args, call.kwargs)
            if changed is not None:
                call.args, call.kwargs = changed
        else:
            changed = hook(module, call.args)
            if changed is not None:
                call.args = as_tuple(changed)

    return run


def after_forward(hook: Callable[..., Any], with_kwargs: bool) -> Callable[[Module, Call], None]:
    def run(module: Module, call: Call) -> None:
        seen = (call.args, call.kwargs) if with_kwargs else (call.args,)
        changed = hook(module, *seen, call.result)
        if changed is not None:
            call.result = changed

    return run


def before_backward(hook: Callable[..., Any]) -> Callable[[Module, Call], None]:
    def run(module: Module, call: Call) -> None:
        changed = hook(module, call.args)
        if changed is not None:
            call.args = as_tuple(changed)

    return run


def after_backward(hook: Callable[..., Any]) -> Callable[[Module, Call], None]:
    def run(module: Module, call: Call) -> None:
        changed = hook(module, as_tuple(call.result), call.args)
        if changed is not None:
            call.result = changed if isinstance(call.result, tuple) else as_tuple(changed)[0]

    return run


def register(
    module: Module, kind: int, run: Callable[[Module, Call], None], prepend: bool, always_call: bool = False
) -> RemovableHandle:
    """Gives the hook to the library; the handle takes it back."""
    of = type(module)._of

    def call(record: Any) -> None:
        found = of(shared(record.module))
        run(found, found._calls[-1] if found._calls else Call((), {}))

    toggles = options(
        capi.hook_options(),
        prepend=capi.TOGGLE_ON if prepend else capi.TOGGLE_OFF,
        always_call=capi.TOGGLE_ON if always_call else capi.TOGGLE_OFF,
    )
    handle = capi.module_register_hook(module._handle, kind, call, toggles)

    def remove() -> None:
        capi.hook_remove(handle)
        capi.handle_release(handle)

    return RemovableHandle(remove)
