# SPDX-License-Identifier: Apache-2.0
"""Something under way: a collective."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from . import capi
from ._handle import Owner

T = TypeVar("T")


class Work(Owner, Generic[T]):
    """A collective that was only started. The arrays given to it stay borrowed until it is finished; it keeps them."""

    __slots__ = ("_result", "_kept")

    def __init__(self, handle: Any, result: T, *kept: object) -> None:
        self._own(handle)
        self._result = result
        self._kept = kept

    def wait(self) -> T:
        """Blocks until it is finished, and gives the result. Again: no effect. PyTorch: ``Work.wait``.

        Raises:
            TpfsdpError: what the collective failed with.
        """
        if not capi.work_test(self._handle):
            capi.work_wait(self._handle)
        return self._result

    def test(self) -> bool:
        """Whether it is finished. Never blocks. PyTorch: ``is_completed``."""
        return bool(capi.work_test(self._handle))
