# SPDX-License-Identifier: Apache-2.0
"""Objects that own a handle of the library, and plain snapshots of its records."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from . import capi

T = TypeVar("T")

# From a handle to the Python object made for it: a look-up gives the same object again. Values of handles are never
# used twice in a process, so an entry cannot mean another object.
_objects: weakref.WeakValueDictionary[int, Owner] = weakref.WeakValueDictionary()


class Owner:
    """Owns one reference to a handle and gives it back when it dies, on any thread."""

    __slots__ = ("_handle", "_release", "__weakref__")

    _handle: Any
    _release: Any

    def _own(self, handle: Any) -> None:
        """Takes ``handle`` over, as functions of ``capi`` return it."""
        self._handle = handle
        self._release = weakref.finalize(self, capi.handle_release, handle)
        self._release.atexit = False
        _objects[int(handle)] = self


def known(handle: Any) -> Owner | None:
    """The object made for ``handle``, an owned one that is given back here; None if there is none."""
    found = _objects.get(int(handle))
    if found is not None:
        capi.handle_release(handle)
    return found


def shared(handle: Any) -> Any:
    """An owned reference from the borrowed one of a record."""
    capi.handle_retain(handle)
    return handle


def ask(getter: Callable[..., Any], record: Callable[[], T], *arguments: Any) -> T:
    """Fills a new ``record``. Its strings are borrowed: read them before anything else happens."""
    info = record()
    getter(*arguments, info)
    return info


def snapshot(kind: type[T], record: Any) -> T:
    """A dataclass with the record's values, copied."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    return kind(**{field.name: getattr(record, field.name) for field in fields})


def options(record: Any, **fields: Any) -> Any:
    """Sets members of an options record. Strings are borrowed by it, so it keeps what it was given."""
    for name, value in fields.items():
        setattr(record, name, value)
    record.kept = fields
    return record


def read_blob(blob: Any) -> bytes:
    try:
        return bytes(capi.blob_get(blob))
    finally:
        capi.handle_release(blob)
