# SPDX-License-Identifier: Apache-2.0
"""Ranks on a grid with named dimensions; each dimension has its group. Names and signatures are those of
``tensorplay.distributed.device_mesh`` and PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import capi
from ._handle import Owner, ask
from .context import current_context
from .errors import InvalidArgument, NotFound, Unsupported
from .group import Group


def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int],
    *,
    mesh_dim_names: Sequence[str] | None = None,
    backend_override: Any = None,
) -> DeviceMesh:
    """All ranks of the current context, row-major over ``mesh_shape``, whose product is the world size. Collective.

    Args:
        device_type: "cpu".
        mesh_dim_names: one for each dimension; needed to name them later, and to shard over several.

    Raises:
        InvalidArgument: the product is not the world size; names repeat.
        Unsupported: another device, or ``backend_override``.
    """
    if backend_override is not None:
        raise Unsupported("backend_override: this version has one backend for each context")
    return DeviceMesh._create(device_type, mesh_shape, mesh_dim_names)


class DeviceMesh(Owner):
    """Ranks on a grid. ``DeviceMesh("cpu", [[0, 1], [2, 3]])`` lays all ranks of the current context out, row-major;
    other orders are not supported. Collective."""

    __slots__ = ("device_type", "shape", "mesh_dim_names", "_coordinate", "_ranks")

    device_type: str
    shape: tuple[int, ...]
    mesh_dim_names: tuple[str, ...] | None

    def __init__(self, device_type: str, mesh: Any, *, mesh_dim_names: Sequence[str] | None = None) -> None:
        ranks = np.asarray(mesh)
        if not np.array_equal(ranks.reshape(-1), np.arange(current_context().world_size)):
            raise Unsupported(
                f"mesh is {ranks.tolist()}; it must list all {current_context().world_size} ranks in order, row-major"
            )
        self._lay_out(device_type, ranks.shape, mesh_dim_names)

    @classmethod
    def _create(cls, device_type: str, shape: Sequence[int], names: Sequence[str] | None) -> DeviceMesh:
        mesh = cls.__new__(cls)
        mesh._lay_out(device_type, shape, names)
        return mesh

    def _lay_out(self, device_type: str, shape: Sequence[int], names: Sequence[str] | None) -> None:
        if device_type != "cpu":
            raise Unsupported(f"device_type is {device_type!r}; this version has 'cpu' only")
        sizes = [int(size) for size in shape]
        group = current_context().group
        self._set_up(capi.mesh_create(group._handle, sizes, names), np.asarray(group.global_ranks).reshape(sizes))

    def _set_up(self, handle: Any, ranks: Any) -> None:
        self._own(handle)
        info = ask(capi.mesh_get_info, capi.mesh_info, handle)
        self.device_type = "cpu"
        self.shape = capi.int32_tuple(info.sizes, info.ndim)
        self.mesh_dim_names = capi.name_tuple(info.names, info.ndim) or None
        self._coordinate = capi.int32_tuple(info.coordinates, info.ndim)
        self._ranks = ranks

    @classmethod
    def _from(cls, handle: Any, ranks: Any) -> DeviceMesh:
        mesh = cls.__new__(cls)
        mesh._set_up(handle, ranks)
        return mesh

    @classmethod
    def from_group(
        cls,
        group: Group | Sequence[Group],
        device_type: str | None = None,
        mesh: Any = None,
        mesh_dim_names: Sequence[str] | None = None,
    ) -> DeviceMesh:
        """A mesh over groups that exist, outermost first, one for each dimension. Nothing new is made. Collective.

        Args:
            mesh: the ranks of the grid, as PyTorch needs for several groups; only kept for :attr:`mesh`.
        """
        if device_type not in (None, "cpu"):
            raise Unsupported(f"device_type is {device_type!r}; this version has 'cpu' only")
        groups = [group] if isinstance(group, Group) else list(group)
        if mesh is None:
            mesh = groups[0].global_ranks if len(groups) == 1 else None
        ranks = None if mesh is None else np.asarray(mesh)
        return cls._from(capi.mesh_create_from_groups([one._handle for one in groups], mesh_dim_names), ranks)

    # ---- What it is ----

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def mesh(self) -> Any:
        """The global ranks of the grid through this rank, as nested lists."""
        return None if self._ranks is None else self._ranks.tolist()

    def size(self, mesh_dim: int | None = None) -> int:
        """Ranks along a dimension, or of all."""
        return math.prod(self.shape) if mesh_dim is None else self.shape[mesh_dim]

    def numel(self) -> int:
        return self.size()

    def get_rank(self) -> int:
        """This rank in the context."""
        return int(self.get_all_groups()[0].global_ranks[self._coordinate[0]])

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """This rank's place along a dimension; None for the only one."""
        return int(self._coordinate[self._dim(mesh_dim)])

    def get_coordinate(self) -> list[int]:
        return list(self._coordinate)

    def get_group(self, mesh_dim: int | str | None = None) -> Group:
        """The group along a dimension, by number (negative from the end) or name; None for the only one."""
        return Group._of(capi.mesh_get_group(self._handle, self._dim(mesh_dim)))

    def get_all_groups(self) -> list[Group]:
        return [self.get_group(dim) for dim in range(self.ndim)]

    def _dim(self, mesh_dim: int | str | None) -> int:
        if mesh_dim is None:
            if self.ndim != 1:
                raise InvalidArgument(f"the mesh has {self.ndim} dimensions: say which one")
            return 0
        if isinstance(mesh_dim, str):
            if mesh_dim not in (self.mesh_dim_names or ()):
                raise NotFound(f"the mesh has no dimension {mesh_dim!r}; it has {self.mesh_dim_names}")
            return (self.mesh_dim_names or ()).index(mesh_dim)
        return mesh_dim

    # ---- Parts ----

    def __getitem__(self, names: str | Sequence[str]) -> DeviceMesh:
        """The mesh of some dimensions, in the order given: ``mesh["dp"]``, ``mesh["dp", "tp"]``."""
        chosen = (names,) if isinstance(names, str) else tuple(names)
        handle = capi.mesh_slice(self._handle, chosen)
        return DeviceMesh._from(handle, self._part(chosen))

    def _flatten(self, mesh_dim_name: str | None = None) -> DeviceMesh:
        """All dimensions as one, row-major, called ``mesh_dim_name`` (the names joined by "_"). Collective."""
        names = self.mesh_dim_names or ()
        handle = capi.mesh_flatten(self._handle, names, mesh_dim_name or "_".join(names))
        return DeviceMesh._from(handle, None if self._ranks is None else self._ranks.reshape(-1))

    def _part(self, names: Sequence[str]) -> Any:
        if self._ranks is None:
            return None
        dims = [self._dim(name) for name in names]
        here = self._ranks[tuple(slice(None) if dim in dims else at for dim, at in enumerate(self._coordinate))]
        return here.transpose([sorted(dims).index(dim) for dim in dims])

    def __repr__(self) -> str:
        return f"DeviceMesh({self.device_type!r}, {self.mesh}, mesh_dim_names={self.mesh_dim_names})"
