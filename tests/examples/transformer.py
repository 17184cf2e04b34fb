# SPDX-License-Identifier: Apache-2.0
"""The transformer in C is the one in Python: same start, same text, and losses that differ only by the order in which
a dot product is summed. And its memory is what the formula says.

    transformer.py PROGRAM TEXT       the built examples/c/transformer.c, and data/devil.txt.gz unpacked
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "python"))

import transformer_data
import transformer_math
import transformer_reference

STEPS, PIECES = 20, 2
LARGEST_DIFFERENCE = 1e-4  # relative; 2e-7 was measured


def run_c(program: str, path: str, shape: transformer_math.Shape, *options: str) -> dict[str, Any]:
    command = [program, path, "--steps", str(STEPS), "--batch", str(PIECES), "--held-out", "16", *options]
    for name in ("length", "width", "heads", "blocks"):
        command += [f"--{name}", str(getattr(shape, name))]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=240).stdout
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def main(program: str, path: str) -> int:
    text = transformer_data.load()
    worst = 0.0
    for ranks, width, heads, blocks in ((1, 24, 2, 5), (3, 32, 4, 4)):
        shape = transformer_math.Shape(text.symbols, 16, width, heads, blocks)
        expected, _ = transformer_reference.train(text, shape, ranks, STEPS, PIECES)
        sharded = run_c(program, path, shape, "--ranks", str(ranks))
        unsharded = run_c(program, path, shape, "--ranks", str(ranks), "--unsharded")
        if sharded["losses"] != unsharded["losses"] or len(sharded["losses"]) != len(expected):
            print(f"{ranks} ranks in C: {sharded['losses']}, unsharded {unsharded['losses']}")
            return 1
        if sharded["peak_bytes_measured"] != (formula := transformer_reference.peak_bytes(shape, ranks)):
            print(f"{ranks} ranks in C hold {sharded['peak_bytes_measured']} bytes, the formula says {formula}")
            return 1
        worst = max(worst, *(abs(float.fromhex(c) / float(py) - 1) for c, py in zip(sharded["losses"], expected)))
    print(f"largest relative difference between losses in C and in Python: {worst:.1e}")
    return 1 if not worst <= LARGEST_DIFFERENCE else 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
