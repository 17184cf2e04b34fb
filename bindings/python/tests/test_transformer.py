# SPDX-License-Identifier: Apache-2.0
"""The transformer of examples/python equals its unsharded run to the bit, however it is driven."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "python"


def run(*arguments: str, ranks: int = 0) -> dict[str, Any]:
    """Rank 0's result; with ``ranks`` as processes."""
    command = [sys.executable, str(EXAMPLES / "transformer.py"), "--steps", "6", "--batch", "2", "--compare", *arguments]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | launch)
        for launch in ([{"RANK": str(rank), "WORLD_SIZE": str(ranks)} for rank in range(ranks)] or [{}])
    ]
    outputs = [process.communicate(timeout=240)[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(started), outputs
    result: dict[str, Any] = json.loads(outputs[0].splitlines()[-1])
    assert result["max_ulp"] == 0
    assert result["peak_bytes_measured"] == result["peak_bytes_formula"]
    assert len(result["losses"]) == 6
    return result


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_drive_gives_the_same_losses(ranks: int) -> None:
    variants = [("manual",), ("call", "--recompute"), ("segment", "--recompute"), ("call",)]
    if ranks != 2:
        variants = variants[:2]
    results = [run("--ranks", str(ranks), "--drive", *variant) for variant in variants]
    assert all(result["losses"] == results[0]["losses"] for result in results)


@pytest.mark.parametrize("drive", ["manual", "call", "segment"])
def test_ranks_that_are_processes(drive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPFSDP_STORE", f"file:{tmp_path}/store")
    result = run("--drive", drive, "--recompute", ranks=4)
    assert (result["backend"], result["ranks"]) == ("shm", 4)


def test_every_gradient_is_that_of_its_forward() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLES / "transformer_math.py")], timeout=240, check=False)
    assert done.returncode == 0
