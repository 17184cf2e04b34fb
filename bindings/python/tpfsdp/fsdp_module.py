# SPDX-License-Identifier: Apache-2.0
"""What a module gains by fully_shard."""

from __future__ import annotations

import dataclasses
from types import TracebackType
from typing import Any

from . import capi, dtypes
from ._handle import ask, read_blob, snapshot
from .errors import InvalidArgument, Unsupported
from .unit import MemoryInfo, UnitInfo, memory_of, units_of
from .work import Work


@dataclasses.dataclass(frozen=True, slots=True)
class Switches:
    """The switches of a sharded module: see the setters of :class:`FSDPModule`."""

    reshard_after_backward: bool
    requires_gradient_sync: bool
    is_last_backward: bool
    manual_backward_finalization: bool
    unshard_in_backward: bool
    reduce_unused_params: bool


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

    @property
    def input_dtype(self) -> Any:
        """What floating inputs of forward should be cast to; None: nothing. The program casts them, or not."""
        return dtypes.or_none(ask(capi.fsdp_module_get_info, capi.fsdp_module_info, self._handle).input_dtype)

    @property
    def output_dtype(self) -> Any:
        """What floating outputs of forward should be cast to; None: nothing."""
        return dtypes.or_none(ask(capi.fsdp_module_get_info, capi.fsdp_module_info, self._handle).output_dtype)

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

    # ---- The end of a step ----

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """False: the end of a backward neither waits for reductions nor opens the write window, and the recorded order
        stays; for micro-batches. Of the whole tree. Start: True."""
        capi.fsdp_module_set_is_last_backward(self._handle, is_last_backward)

    def set_manual_backward_finalization(self, enabled: bool) -> None:
        """True: the end of the step is :meth:`finalize_backward`, not the end of a backward. On the root, not inside a
        backward. Start: False."""
        capi.fsdp_module_set_manual_backward_finalization(self._handle, enabled)

    def finalize_backward(self, async_op: bool = False) -> Work[None] | None:
        """Ends the step under manual finalization: waits for all reductions and opens the write window. On the root;
        before the first forward nothing. Collective.

        Args:
            async_op: only start it; nothing else of the tree may be called before the returned work is done.
        """
        handle = capi.fsdp_module_finalize_backward(self._handle, async_op)
        return Work(handle, None) if async_op else None

    # ---- Switches: each holds until changed, the same on every rank. recurse: every sharded module below as well. ----

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """False: gradients only add up on this rank, until a backward with True reduces their sum. Start: True."""
        capi.fsdp_module_set_requires_gradient_sync(self._handle, requires_gradient_sync, recurse)

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Free after forward (True) or keep for backward (False) from the next forward on; ends the automatic rule for
        the root. Memory is planned anew for the next step."""
        if not isinstance(reshard_after_forward, bool):
            raise InvalidArgument(f"reshard_after_forward is {reshard_after_forward!r}; it is True or False")
        kind = capi.RESHARD_ALWAYS if reshard_after_forward else capi.RESHARD_NEVER
        capi.fsdp_module_set_reshard_after_forward(self._handle, kind, recurse)

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """False: parameters stay full after backward, and the next forward of the same step gathers nothing. Use it
        with ``set_is_last_backward(False)``. Start: True."""
        capi.fsdp_module_set_reshard_after_backward(self._handle, reshard_after_backward, recurse)

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """False: its backward does not need its parameters (an embedding). Start: True."""
        capi.fsdp_module_set_unshard_in_backward(self._handle, unshard_in_backward)

    def set_reduce_scatter_unused_params(self, reduce_scatter_unused_params: bool, *, recurse: bool = True) -> None:
        """True: trainable parameters without gradient count as zero, so ranks may use different ones. Start: False."""
        capi.fsdp_module_set_reduce_scatter_unused_params(self._handle, reduce_scatter_unused_params, recurse)

    def set_modules_to_forward_prefetch(self, modules: list[FSDPModule]) -> None:
        """In its forward, also starts the gathers of ``modules``, in order. Replaces the last list; [] clears it."""
        capi.fsdp_module_set_modules_to_forward_prefetch(self._handle, [module._handle for module in modules])

    def set_modules_to_backward_prefetch(self, modules: list[FSDPModule]) -> None:
        """The same in backward, in place of the recorded order."""
        capi.fsdp_module_set_modules_to_backward_prefetch(self._handle, [module._handle for module in modules])

    # ---- As it stands ----

    @property
    def switches(self) -> Switches:
        """What the setters say now."""
        found = snapshot(Switches, ask(capi.fsdp_module_get_info, capi.fsdp_module_info, self._handle))
        return Switches(**{name: bool(value) for name, value in dataclasses.asdict(found).items()})

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

    def plan(self, format: str = "text") -> str:
        """Units, owners of rows, slots, planned peak, collectives and bytes per step, of this rank, once the tree is
        prepared. Only on the root.

        Args:
            format: "text" for a terminal, "html" for one page that stands by itself, or "json".
        """
        formats = {"text": capi.PLAN_TEXT, "html": capi.PLAN_HTML, "json": capi.PLAN_JSON}
        if format not in formats:
            raise InvalidArgument(f"format is {format!r}; it is one of {', '.join(formats)}")
        return read_blob(capi.root_export_plan(self._handle, formats[format])).decode()

    def __deepcopy__(self, memo: Any) -> Any:
        raise Unsupported("a sharded module cannot be copied; copy it before fully_shard, or its values")
