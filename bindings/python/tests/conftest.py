# SPDX-License-Identifier: Apache-2.0
"""A test that hangs prints every thread's stack and ends the run."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator

import pytest

import tpfsdp

LIMIT_S = 120


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def alone() -> Iterator[tpfsdp.Context]:
    """A world of one, current."""
    with tpfsdp.Context() as context:
        yield context
