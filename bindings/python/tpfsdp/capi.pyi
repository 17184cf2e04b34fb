# SPDX-License-Identifier: Apache-2.0
# The generated layer is private, and untyped on purpose: the typed layer above it says what users see.
from typing import Any

def __getattr__(name: str) -> Any: ...
