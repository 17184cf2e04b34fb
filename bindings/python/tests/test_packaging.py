# SPDX-License-Identifier: Apache-2.0
"""The package says which library it is, and its two project files say the same."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tpfsdp
from tpfsdp import capi

ROOT = Path(__file__).resolve().parents[3]


def test_version() -> None:
    header = (ROOT / "include" / "tpfsdp" / "version.h").read_text()
    numbers = re.findall(r"VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header)
    assert tpfsdp.__version__ == ".".join(numbers)
    assert tpfsdp.__version__ in tpfsdp.version_text()
    with pytest.raises(tpfsdp.AbiMismatch, match="libtpfsdp"):
        capi.version_require(capi.VERSION_NUMBER + 1_000_000)


def test_both_project_files_agree() -> None:
    top = tomllib.loads((ROOT / "pyproject.toml").read_text())
    own = tomllib.loads((ROOT / "bindings" / "python" / "pyproject.toml").read_text())
    assert top["project"] == own["project"]
    assert top["build-system"] == own["build-system"]


def test_the_package_is_typed() -> None:
    assert (Path(tpfsdp.__file__).parent / "py.typed").exists()


def test_an_interpreter_ends_cleanly_with_objects_alive() -> None:
    program = """
import numpy as np, tpfsdp
kept = []
def work(rank):
    rank.set_interrupt(lambda: None)
    model = tpfsdp.Module()
    model.weight = tpfsdp.Parameter(np.zeros((4, 4), np.float32))
    tpfsdp.fully_shard(model)
    kept.append((rank, model, model.weight.shard))
tpfsdp.run_ranks(2, work)
alone = tpfsdp.Context().use()
kept.append(tpfsdp.Tensor.zeros((3,)).__dlpack__())
print("end")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")
