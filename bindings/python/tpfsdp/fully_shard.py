# SPDX-License-Identifier: Apache-2.0
"""The one call this library is for, and what a module gains by it."""

from __future__ import annotations

import array
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from . import capi
from ._handle import ask, options
from .errors import InvalidArgument, Unsupported
from .host_memory import HostMemory, make_callback
from .mesh import DeviceMesh
from .module import Module
from .parameter import Parameter
from .unit import MemoryInfo, UnitInfo, memory_of, units_of

_INIT_MODES = {"verify": capi.INIT_VERIFY, "trust": capi.INIT_TRUST, "broadcast": capi.INIT_BROADCAST}


class UnshardHandle:
    """A gather that may be under way. As a context manager it waits, and frees the parameters at its end."""

    _work: Any = None
    _module: FSDPModule | None = None

    def wait(self) -> None:
        """Returns when the full parameters are there. Again: no effect."""
        if self._work is not None and not capi.work_test(self._work):
            capi.work_wait(self._work)
        self._work, work = None, self._work
        capi.handle_release(work)

    def __enter__(self) -> UnshardHandle:
        self.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._module is not None:
            self._module.reshard()


class FSDPModule:
    """What :func:`fully_shard` mixes into a module's class: ``isinstance(module, FSDPModule)`` tells a sharded one."""

    _handle: Any

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A new object of a sharded class is one of the class before: it is not sharded."""
        if len(cls.__mro__) < 3 or cls.__mro__[1] is not FSDPModule:
            raise TypeError("FSDPModule is mixed in by fully_shard")
        original: Any = cls.__mro__[2]
        instance = original.__new__(original)
        original.__init__(instance, *args, **kwargs)
        return instance

    def unshard(self, async_op: bool = False) -> UnshardHandle:
        """Gathers the module's own units. Collective. Full or under way already: no effect.

        Args:
            async_op: only start it; the module's own forward waits for it, if nobody does.

        Returns:
            a handle, finished already without ``async_op``.
        """
        handle = UnshardHandle()
        handle._module = self
        handle._work = capi.fsdp_module_unshard(self._handle, async_op)
        return handle

    def reshard(self) -> None:
        """Frees the full parameters; those that a view still holds later. Never waits."""
        capi.fsdp_module_reshard(self._handle)

    def reset_iter_state(self) -> None:
        """After any exception inside a step, on the root of every rank: gives up what is under way and drops the step's
        gradients; everything is sharded again. Collective."""
        capi.fsdp_module_reset_iter_state(self._handle)

    @property
    def is_root(self) -> bool | None:
        """None before that is settled, by the first forward."""
        value = ask(capi.fsdp_module_get_info, capi.fsdp_module_info, self._handle).is_root
        return None if value < 0 else bool(value)

    @property
    def units(self) -> list[UnitInfo]:
        """What it gathers together, as it stands; empty without parameters of its own."""
        return units_of(self._handle)

    def memory_info(self) -> MemoryInfo:
        """What the whole tree holds on this rank. Only on the root."""
        return memory_of(self._handle)

    def __deepcopy__(self, memo: Any) -> Any:
        raise Unsupported("a sharded module cannot be copied; copy it before fully_shard, or its values")


_sharded_classes: dict[type, type] = {}


def _sharded_class(kind: type) -> type:
    """``FSDPLinear`` for ``Linear``: made once."""
    if kind not in _sharded_classes:
        _sharded_classes[kind] = type(f"FSDP{kind.__name__}", (FSDPModule, kind), {"__module__": kind.__module__})
    return _sharded_classes[kind]


def _reshard_kind(value: bool | int | None) -> tuple[int, int]:
    if value is None:
        return capi.RESHARD_AUTO, 0
    if isinstance(value, bool):
        return (capi.RESHARD_ALWAYS if value else capi.RESHARD_NEVER), 0
    if isinstance(value, int):
        return capi.RESHARD_SIZE, value
    raise InvalidArgument(f"reshard_after_forward is {value!r}; it is True, False, None or a number of ranks")


def fully_shard(
    module: Any,
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Callable[[Parameter], Any] | None = None,
    mp_policy: Any = None,
    offload_policy: Any = None,
    ignored_params: Iterable[Parameter] | None = None,
    dp_mesh_dims: Any = None,
    host_memory: HostMemory | None = None,
    init: str = "verify",
) -> Any:
    """Makes the parameters below ``module`` that no earlier call took one unit, cut by rows over the ranks. Children
    first, then parents, on every rank in the same order. PyTorch: ``fully_shard``.

    Args:
        module: one module, or a list that shares one unit. Changed in place: its class becomes ``FSDP<its class>``.
        mesh: 1-D; None: all ranks of the context.
        reshard_after_forward: True: free after forward and gather again in backward. False: keep. None: True, but
            False for the root. A number of ranks is not supported yet.
        ignored_params: never touched.
        host_memory: where full parameters live; None: in memory of the library. See :class:`HostMemory`.
        init: how ranks make sure that they start equal: "verify" compares a hash of each parameter before the first
            step, "trust" does not, "broadcast" takes rank 0's values now.
        shard_placement_fn, mp_policy, offload_policy, dp_mesh_dims: not supported yet; anything but None is refused.

    Returns:
        ``module``.

    Raises:
        InvalidState: sharded already.
        InvalidArgument: a container without forward, the same module twice, a parameter without dimensions.
        Unsupported: what this version has not, by name.
    """
    for name, value in (
        ("shard_placement_fn", shard_placement_fn),
        ("mp_policy", mp_policy),
        ("offload_policy", offload_policy),
        ("dp_mesh_dims", dp_mesh_dims),
    ):
        if value is not None:
            raise Unsupported(f"{name} is not supported by this version; leave it at None")
    if init not in _INIT_MODES:
        raise InvalidArgument(f"init is {init!r}; it is one of {', '.join(_INIT_MODES)}")
    modules = [module] if isinstance(module, Module) else list(module)
    for one in modules:
        if not isinstance(one, Module):
            raise TypeError(f"a Module, or a list of them, is needed, not {type(one).__name__}")

    record = options(capi.fully_shard_options(), init=_INIT_MODES[init])
    record.reshard_after_forward.kind, record.reshard_after_forward.size = _reshard_kind(reshard_after_forward)
    ignored = array.array("Q", [int(param._handle) for param in ignored_params or ()])
    record.ignored_params, record.ignored_param_count = (ignored.buffer_info()[0] if ignored else None), len(ignored)
    if host_memory is not None:
        callback = capi.memory_callback(make_callback(host_memory))
        record.host_memory = callback
    capi.fully_shard([one._handle for one in modules], None if mesh is None else mesh._handle, record)
    for one in modules:
        one.__class__ = _sharded_class(type(one))
    return module
