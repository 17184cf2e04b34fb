# SPDX-License-Identifier: Apache-2.0
"""Every example of docs/from-pytorch.md runs."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

import tpfsdp

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "from-pytorch.md").read_text()
EXAMPLES = re.findall(r"^## (.*?)\n.*?```python\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)


def test_all_examples_are_found() -> None:
    assert len(EXAMPLES) == PAGE.count("```python")
    assert EXAMPLES[0][0] == "The model"


@pytest.mark.parametrize(("title", "example"), EXAMPLES[1:], ids=[title for title, _ in EXAMPLES[1:]])
def test_example(title: str, example: str) -> None:
    program = EXAMPLES[0][1] + "\ndef work(rank):\n" + textwrap.indent(example, "    ")
    names: dict[str, Any] = {}
    exec(compile(program, title, "exec"), names)
    tpfsdp.run_ranks(2, names["work"])
