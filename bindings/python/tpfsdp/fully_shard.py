# SPDX-License-Identifier: Apache-2.0
"""The one call this library is for."""

from __future__ import annotations

import array
import functools
import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any

from . import capi
from ._handle import options
from .errors import InvalidArgument, NotFound, Unsupported
from .fsdp_module import FSDPModule
from .host_memory import HostMemory, make_callback
from .mesh import DeviceMesh
from .mixed_precision import MixedPrecisionPolicy, make_record
from .module import _FORWARD, Module
from .parameter import Parameter
from .unit import Granule, Layout, UnshardMode

_INIT_MODES = {"verify": capi.INIT_VERIFY, "trust": capi.INIT_TRUST, "broadcast": capi.INIT_BROADCAST}


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
    mp_policy: MixedPrecisionPolicy | None = None,
    offload_policy: Any = None,
    ignored_params: Iterable[Parameter] | None = None,
    dp_mesh_dims: Any = None,
    host_memory: HostMemory | None = None,
    init: str = "verify",
    unshard_mode: UnshardMode = UnshardMode.AUTO,
    layout: Layout = Layout.ROWS,
    granule: Granule | int = Granule.ROW,
) -> Any:
    """Makes the parameters below ``module`` that no earlier call took one unit, cut by rows over the ranks. Children
    first, then parents, on every rank in the same order. PyTorch: ``fully_shard``.

    Args:
        module: one module, or a list that shares one unit. Changed in place: its class becomes ``FSDP<its class>``.
        mesh: 1-D; None: all ranks of the context.
        reshard_after_forward: True: free after forward and gather again in backward. False: keep. None: True, but
            False for the root. A number that divides the ranks: so many ranks in order hold one copy between them
            after forward, and backward gathers among them.
        ignored_params: never touched.
        host_memory: where full parameters live; None: in memory of the library. See :class:`HostMemory`.
        init: how ranks make sure that they start equal: "verify" compares a hash of each parameter before the first
            step, "trust" does not, "broadcast" takes rank 0's values now.
        unshard_mode: how full parameters come to be. In SHARED and MAPPED other ranks read the same memory, so arrays of
            full values are read-only, and a unit that is still full when a last backward ends is an InvalidState. With
            ``host_memory``, a number as ``reshard_after_forward``, or a backend without such memory it is PRIVATE;
            ``units`` tells the mode in force, and why.
        layout: which elements each rank owns.
        granule: where ``Layout.CONTIGUOUS`` may cut a parameter: anywhere, between rows, or after each so many rows.
        mp_policy: dtypes of computing and reducing; None: the parameters' own.
        shard_placement_fn, offload_policy, dp_mesh_dims: not supported yet; anything but None is refused.

    Returns:
        ``module``.

    Raises:
        InvalidState: sharded already.
        InvalidArgument: a container without forward, the same module twice, a parameter without dimensions.
        Unsupported: what this version has not, by name.
    """
    for name, value in (
        ("shard_placement_fn", shard_placement_fn),
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

    record = options(capi.fully_shard_options(), init=_INIT_MODES[init], unshard_mode=int(unshard_mode))
    record.reshard_after_forward.kind, record.reshard_after_forward.size = _reshard_kind(reshard_after_forward)
    record.layout = int(layout)
    if isinstance(granule, Granule):
        record.granule = int(granule) if granule != Granule.ROW else capi.GRANULE_DEFAULT
    else:
        record.granule, record.granule_size = capi.GRANULE_BLOCK, granule
    ignored = array.array("Q", [int(param._handle) for param in ignored_params or ()])
    record.ignored_params, record.ignored_param_count = (ignored.buffer_info()[0] if ignored else None), len(ignored)
    if mp_policy is not None:
        policy = make_record(mp_policy)
        record.mp_policy = policy
    if host_memory is not None:
        callback = capi.memory_callback(make_callback(host_memory))
        record.host_memory = callback
    capi.fully_shard([one._handle for one in modules], None if mesh is None else mesh._handle, record)
    for one in modules:
        one.__class__ = _sharded_class(type(one))
    return module


def register_fsdp_forward_method(module: Any, method_name: str) -> None:
    """``module.<method_name>(...)`` gathers the parameters first and frees them again, as ``module(...)`` does. No effect
    on a module that is not sharded. PyTorch: ``register_fsdp_forward_method``.

    Raises:
        NotFound: there is no such method.
    """
    if not isinstance(module, FSDPModule):
        return
    method = getattr(module, method_name, None)
    if not callable(method):
        raise NotFound(f"{type(module).__name__} has no method {method_name!r}")
    # A function that was set on the object itself takes no self.
    of_class = inspect.ismethod(method)
    plain = method.__func__ if of_class else method

    @functools.wraps(plain)
    def driven(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._drive(_FORWARD, functools.partial(plain, self) if of_class else plain, args, kwargs)

    object.__setattr__(module, method_name, types.MethodType(driven, module))
