# SPDX-License-Identifier: Apache-2.0
"""This rank's membership of a set of ranks, and the collectives that a program may use itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, overload

import numpy as np

from . import capi
from ._handle import Owner, ask, known, read_blob
from .errors import InvalidArgument
from .memory import Array, as_array, describe
from .work import Work

_OPS = {"sum": capi.REDUCE_SUM, "avg": capi.REDUCE_AVG, "min": capi.REDUCE_MIN, "max": capi.REDUCE_MAX}


def _op(name: str) -> int:
    if name not in _OPS:
        raise InvalidArgument(f"op is {name!r}; it is one of {', '.join(_OPS)}")
    return int(_OPS[name])


def _finish(work: Any, output: Array, *kept: object) -> Any:
    if work is not None:
        return Work(work, output, output, *kept)
    return output[()] if output.ndim == 0 else output


class Group(Owner):
    """One rank's membership. The default one is :attr:`Context.group`; others come from :meth:`split` or a mesh.

    Collectives take dense NumPy arrays, numbers, or anything with ``__dlpack__``, of one dtype (float32, float64,
    float16, ml_dtypes' bfloat16, integers; gather and broadcast take every dtype). They are called by every rank of
    the group, in the same order. With ``async_op`` they give a :class:`Work`. They release the interpreter lock.

    Raises, all of them:
        Mismatch: ranks disagree about what comes next; nothing was moved.
        Remote: a peer failed before it came.
        Timeout, PeerLost, Aborted, BackendFailed: the group is lost.
        Unsupported: an array is not dense.
    """

    __slots__ = ("rank", "world_size", "global_ranks", "name")

    rank: int
    world_size: int
    global_ranks: tuple[int, ...]
    """Each member's rank in the context."""
    name: str

    def __init__(self) -> None:
        raise TypeError("groups come from Context.group, Group.split and DeviceMesh.get_group")

    @classmethod
    def _of(cls, handle: Any) -> Group:
        found = known(handle)
        if isinstance(found, Group):
            return found
        group = cls.__new__(cls)
        group._own(handle)
        info = ask(capi.group_get_info, capi.group_info, handle)
        group.rank, group.world_size, group.name = info.rank, info.world_size, info.name
        group.global_ranks = capi.int32_tuple(info.global_ranks, info.world_size)
        return group

    def size(self) -> int:
        """The number of ranks."""
        return self.world_size

    @property
    def sequence(self) -> int:
        """Collectives started so far."""
        return int(ask(capi.group_get_info, capi.group_info, self._handle).sequence)

    def check(self) -> None:
        """Raises the error that ended the group, if one did. Never blocks."""
        capi.group_check(self._handle)

    def split(self, color: int, order: int = 0, name: str | None = None) -> Group | None:
        """A group of the ranks with the same ``color``, sorted by ``order``, then rank; None for a negative one.
        PyTorch: ``new_group``."""
        handle = capi.group_split(self._handle, color, order, name)
        return None if handle is None else Group._of(handle)

    # ---- Collectives ----

    @overload
    def all_gather(
        self,
        input: Any,
        output: Array | None = ...,
        *,
        counts: Sequence[int] | None = ...,
        async_op: Literal[False] = ...,
    ) -> Array: ...
    @overload
    def all_gather(
        self, input: Any, output: Array | None = ..., *, counts: Sequence[int] | None = ..., async_op: Literal[True]
    ) -> Work[Array]: ...
    def all_gather(
        self, input: Any, output: Array | None = None, *, counts: Sequence[int] | None = None, async_op: bool = False
    ) -> Array | Work[Array]:
        """Every rank's ``input``, in rank order along dimension 0. PyTorch: ``all_gather_into_tensor``.

        Args:
            input: shape ``[n, ...]``, or a number.
            output: shape ``[world_size * n, ...]``; None: a new array. ``input`` may lie in its own place in it.
            counts: elements of each rank's part, where they differ.
        """
        source = as_array(input)
        if output is None:
            if counts is None:
                shape = (self.world_size * (source.shape[0] if source.ndim else 1), *source.shape[1:])
            else:
                row = math.prod(source.shape[1:])
                total = sum(counts)
                shape = (total // row, *source.shape[1:]) if row and total % row == 0 else (total,)
            output = np.empty(shape, source.dtype)
        work = capi.group_all_gather(self._handle, describe(source), describe(output), counts, async_op)
        return _finish(work, output, source)  # type: ignore[no-any-return]

    @overload
    def reduce_scatter(
        self, input: Any, output: Array | None = ..., *, op: str = ..., async_op: Literal[False] = ...
    ) -> Array: ...
    @overload
    def reduce_scatter(
        self, input: Any, output: Array | None = ..., *, op: str = ..., async_op: Literal[True]
    ) -> Work[Array]: ...
    def reduce_scatter(
        self, input: Any, output: Array | None = None, *, op: str = "sum", async_op: bool = False
    ) -> Array | Work[Array]:
        """Reduces ``input``; each rank gets its equal part of dimension 0. PyTorch: ``reduce_scatter_tensor``.

        Args:
            input: shape ``[world_size * n, ...]``.
            output: shape ``[n, ...]``; None: a new array. It may be this rank's part of ``input``.
            op: "sum", "avg", "min" or "max". Sums are kept in float32 (float64 for it), in rank order.
        """
        source = as_array(input)
        if output is None:
            output = np.empty(
                (source.shape[0] // self.world_size, *source.shape[1:]) if source.ndim else (), source.dtype
            )
        work = capi.group_reduce_scatter(self._handle, describe(source), describe(output), _op(op), async_op)
        return _finish(work, output, source)  # type: ignore[no-any-return]

    @overload
    def all_reduce(
        self, input: Any, output: Array | None = ..., *, op: str = ..., async_op: Literal[False] = ...
    ) -> Array: ...
    @overload
    def all_reduce(
        self, input: Any, output: Array | None = ..., *, op: str = ..., async_op: Literal[True]
    ) -> Work[Array]: ...
    def all_reduce(
        self, input: Any, output: Array | None = None, *, op: str = "sum", async_op: bool = False
    ) -> Array | Work[Array]:
        """Reduces ``input`` of all ranks, for all. PyTorch: ``all_reduce``, which writes into its input: give it as
        ``output`` too for that.

        Returns:
            ``output``, by default a new array; a number where ``input`` is one.
        """
        source = as_array(input)
        if output is None:
            output = np.empty(source.shape, source.dtype)
        work = capi.group_all_reduce(self._handle, describe(source), describe(output), _op(op), async_op)
        return _finish(work, output, source)  # type: ignore[no-any-return]

    def broadcast(self, data: Array, source: int = 0, *, async_op: bool = False) -> Array | Work[Array]:
        """Copies ``data`` of rank ``source`` into ``data`` of all. PyTorch: ``broadcast``.

        Returns:
            ``data``.
        """
        work = capi.group_broadcast(self._handle, describe(data), source, async_op)
        return data if work is None else Work(work, data)

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        capi.group_barrier(self._handle)

    # ---- Its life ----

    def reset(self) -> None:
        """After a failed collective outside any sharded tree: all ranks agree on a fresh start. Collective."""
        capi.group_reset(self._handle)

    def shutdown(self) -> None:
        """Ends the group in order. Collective. PyTorch: ``destroy_process_group``."""
        capi.group_shutdown(self._handle)

    def abort(self, reason: str = "aborted by the program") -> None:
        """Emergency stop of this group, from any thread."""
        capi.group_abort(self._handle, reason)

    def dump_recorder(self) -> str:
        """The last collectives of this rank and where each peer was last seen, as JSON. Never communicates.
        PyTorch: the flight recorder's dump."""
        return read_blob(capi.group_dump_recorder(self._handle)).decode()

    def __repr__(self) -> str:
        return f"<tpfsdp.Group {self.name}: rank {self.rank} of {self.world_size}>"
