# SPDX-License-Identifier: Apache-2.0
"""Which library is loaded, and whether it is the one this package was built for."""

from __future__ import annotations

from . import capi
from . import errors  # noqa: F401  the refusal below is one of its exceptions

capi.version_require(capi.VERSION_NUMBER)

__version__ = f"{capi.VERSION_MAJOR}.{capi.VERSION_MINOR}.{capi.VERSION_PATCH}"


def version_text() -> str:
    """The loaded library's version, compiler, build kind and features, in one line."""
    return str(capi.version_text())
