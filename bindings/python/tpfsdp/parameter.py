# SPDX-License-Identifier: Apache-2.0
"""One trainable tensor and its faces: local shard, full values, gradient shard, full gradient."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from . import capi, dtypes
from ._handle import Owner, ask, known, shared
from .errors import Busy, NotFound
from .memory import EPOCH, Array, array_at, as_array, describe
from .tensor import Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class ShardInfo:
    """Where a shard lies in the whole. PyTorch: DTensor's metadata."""

    global_shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    offsets: tuple[int, ...]
    shard_dim: int
    """-1: not sharded, or cut inside rows."""
    is_ragged: bool
    """The local part is a 1-D run of the row-major whole; there are no offsets then."""
    flat_offset: int
    """Of the first element of that run, else -1."""


class RemovableHandle:
    """Takes a registration back."""

    def __init__(self, remove: Callable[[], None]) -> None:
        self._remove: Callable[[], None] | None = remove

    def remove(self) -> None:
        remove, self._remove = self._remove, None
        if remove is not None:
            remove()


class Parameter(Owner):
    """A trainable tensor of a :class:`Module`. PyTorch: ``nn.Parameter``.

    Args:
        data: a dense array or DLPack producer; no copy is made. Its memory is kept until ``fully_shard`` has cut this
            rank's part out, and may go then.
        requires_grad: False: frozen. Integer dtypes must be.

    The arrays given out are views. One of :attr:`full` holds the parameters of its unit full while it, or anything
    made from it, is alive: the reshard waits for that, and so does the write window after a backward.

    Threads: one at a time, for each rank's tree.
    """

    __slots__ = ("_views",)

    _views: dict[int, tuple[int, weakref.ref[Array]]]

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        tensor = data if isinstance(data, Tensor) else Tensor.from_numpy(as_array(data))
        self._set_up(capi.param_create_from_tensor(tensor._handle, requires_grad))

    def _set_up(self, handle: Any) -> None:
        self._own(handle)
        self._views = {}

    @classmethod
    def _of(cls, handle: Any) -> Parameter:
        found = known(handle)
        if isinstance(found, Parameter):
            return found
        param = cls.__new__(cls)
        param._set_up(handle)
        return param

    # ---- What it is ----

    def _info(self) -> Any:
        return ask(capi.param_get_info, capi.param_info, self._handle)

    @property
    def name(self) -> str:
        """The first dotted name below the root; "" while it is in no module."""
        return str(self._info().name)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole, whatever this rank holds of it."""
        info = self._info()
        return capi.int64_tuple(info.global_shape, info.ndim)  # type: ignore[no-any-return]

    @property
    def dtype(self) -> Any:
        """Of the shard and its gradient, as NumPy's."""
        return dtypes.to_numpy(self._info().dtype)

    @property
    def compute_dtype(self) -> Any:
        """Of :attr:`full` and of full gradients: the policy's ``param_dtype``, or :attr:`dtype`."""
        return dtypes.to_numpy(self._info().compute_dtype)

    @property
    def reduce_dtype(self) -> Any:
        """Of the reduction of its gradients."""
        return dtypes.to_numpy(self._info().reduce_dtype)

    @property
    def requires_grad(self) -> bool:
        return bool(self._info().requires_grad)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        capi.param_set_requires_grad(self._handle, value)

    def requires_grad_(self, requires_grad: bool = True) -> Parameter:
        """Freezes or unfreezes it, the same on all ranks, between steps."""
        self.requires_grad = requires_grad
        return self

    @property
    def is_sharded(self) -> bool:
        """Whether ``fully_shard`` has taken it."""
        return bool(self._info().is_sharded)

    @property
    def is_unsharded(self) -> bool:
        """Whether :attr:`full` is there."""
        return bool(self._info().is_unsharded)

    def shard_info(self) -> ShardInfo:
        info = ask(capi.param_get_shard_info, capi.shard_info, self._handle)
        return ShardInfo(
            global_shape=capi.int64_tuple(info.global_shape, info.ndim),
            local_shape=capi.int64_tuple(info.local_shape, 1 if info.is_ragged else info.ndim),
            offsets=() if info.is_ragged else capi.int64_tuple(info.offsets, info.ndim),
            shard_dim=info.shard_dim,
            is_ragged=info.is_ragged,
            flat_offset=info.flat_offset,
        )

    # ---- Its memory ----

    def _view(self, face: int) -> Array:
        """An array over a face: the one that is alive, as long as the memory is the same, else a new one. It is over a
        tensor, which keeps the memory, and holds a pin where it is the full values."""
        view = capi.param_get_view(self._handle, face)
        epoch, reference = self._views.get(face, (None, None))
        array = reference() if reference is not None and epoch == view[EPOCH] else None
        if array is None:
            try:
                owner: Owner = Tensor._of(capi.param_to_tensor(self._handle, face))
            except Busy:  # in a gradient hook, where the library lets itself be looked at only: good for its length
                owner = self
            array, _ = array_at(view, owner)
            self._views[face] = (view[EPOCH], weakref.ref(array))
        return array

    @property
    def full(self) -> Array:
        """All values, shape :attr:`shape`: there between pre- and post-forward, in backward, in a scope or after
        ``unshard``; before sharding always. Keep it no longer than that.

        Raises:
            InvalidState: not unsharded.
        """
        return self._view(capi.FACE_FULL)

    @property
    def shard(self) -> Array:
        """This rank's rows, shape ``shard_info().local_shape``. Written only inside a write window: after a backward,
        or in :func:`shards_write`.

        Raises:
            InvalidState: not sharded.
        """
        return self._view(capi.FACE_SHARD)

    @property
    def grad(self) -> Array | None:
        """This rank's rows of the averaged gradient; None when there is none, which is not zero."""
        try:
            return self._view(capi.FACE_GRAD)
        except NotFound:
            return None

    @grad.setter
    def grad(self, value: Any) -> None:
        capi.param_set_grad(self._handle, None if value is None else describe(as_array(value)))

    @contextlib.contextmanager
    def grad_buffer(self, accumulate: bool = False) -> Iterator[Array]:
        """Library memory for this rank's full gradient, shape :attr:`shape`; it counts when the block ends without an
        exception. Only between pre- and post-backward of its unit, or in a scope.

        Args:
            accumulate: False: content undefined, write every element. True: add to what is there.

        Raises:
            InvalidState: the wrong moment, or frozen.
        """
        array, _ = array_at(capi.param_get_grad_buffer(self._handle, accumulate), self)
        yield array
        capi.param_grad_ready(self._handle)

    def add_grad(self, grad: Any) -> None:
        """Hands a full gradient in the program's own memory over: it is copied, or added, before return."""
        capi.param_add_grad(self._handle, describe(as_array(grad)))

    def set_data(self, data: Any) -> None:
        """Replaces the values: all of them before sharding, this rank's rows after. PyTorch: ``param.data = x``."""
        tensor = data if isinstance(data, Tensor) else Tensor.from_numpy(as_array(data))
        capi.param_set_tensor(self._handle, tensor._handle)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Parameter], object]) -> RemovableHandle:
        """Calls ``hook(param)`` in each backward when the gradient shard is there; it may write the shard. One at a
        time: a new one replaces the last. PyTorch: the same name."""

        def call(record: Any) -> None:
            hook(Parameter._of(shared(record.param)))

        capi.param_set_grad_reduced_callback(self._handle, call)
        return RemovableHandle(lambda: capi.param_set_grad_reduced_callback(self._handle, None))

    def __repr__(self) -> str:
        info = self._info()
        shape = list(capi.int64_tuple(info.global_shape, info.ndim))
        return f"<tpfsdp.Parameter {info.name or 'unnamed'}: {capi.tensor_dtype_name(info.dtype)} {shape}>"
