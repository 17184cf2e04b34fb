# SPDX-License-Identifier: Apache-2.0
"""The main job: trains the digits classifier sharded over 2 and 4 ranks, in Python and in C, and compares every loss
and every parameter with the unsharded run of the same language. `make demo` runs it.

Prints losses, accuracy and memory; writes build/demo/results.json, trace.json and digits.png. Ends with 1 where a run
differs by one unit in the last place, the memory is not what the formula says, or the accuracy is low.

    tools/demo.py [--build build/release]       which build's library, binding and C example
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"  # equal bits need products that are split alike

import argparse
import gzip
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "build" / "demo"
WORLDS = (2, 4)
STEPS = 200
BATCH = 32
GOOD_ACCURACY = 0.95


# ---- What a rank's memory must be ------------------------------------------------------------------------------------


def laid_out(sizes: list[int]) -> int:
    """Bytes of tensors back to back, each at a multiple of 64 bytes, from 64 KiB on of 256."""
    end = 0
    for size in sizes:
        bound = 256 if size >= 65536 else 64
        end = -(-end // bound) * bound + size
    return end


def tensor_bytes(rows: int, columns: int) -> int:
    return rows * columns * 4


def memory_formula(layers: Any, world_size: int, host_storage: bool) -> int:
    """Rank 0's parameters, gradients and optimizer state at their peak: shards of both, two moments of each shard, the
    slots of full parameters and of full gradients. Neighbours need different slots, so layers take two in turn; in the
    program's own memory two neighbours are there at once."""
    shards, moments, full, logical = 0, 0, [], []
    for _, n_in, n_out in layers:
        rows = min(n_out, -(-n_out // world_size))
        mine = [tensor_bytes(rows, n_in), tensor_bytes(rows, 1)]
        whole = [tensor_bytes(n_out, n_in), tensor_bytes(n_out, 1)]
        shards += laid_out(mine)
        moments += 2 * sum(mine)
        full.append(laid_out(whole))
        logical.append(sum(whole))
    slots = max(full[0::2]) + max(full[1::2])
    lent = max(here + after for here, after in zip(logical, logical[1:]))
    return 2 * shards + moments + slots + (lent if host_storage else slots)


# ---- Comparison ------------------------------------------------------------------------------------------------------


def places(values: Any) -> np.ndarray:
    """Floats as numbers in their order: neighbours differ by one."""
    bits = np.ascontiguousarray(values, np.float32).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(2**31) - bits, bits)


def max_ulp(found: Any, expected: Any) -> int:
    return int(np.abs(places(found) - places(expected)).max(initial=0))


def hex_floats(values: Any) -> list[str]:
    return [float(value).hex() for value in values]


# ---- The runs --------------------------------------------------------------------------------------------------------


def run_python(world_size: int) -> tuple[list[dict[str, Any]], Any]:
    import digits
    import digits_data
    import digits_math
    import digits_reference

    data = digits_data.load()
    print(f"Python, {world_size} ranks, parameters in memory of the library")
    runs = digits.run(data, world_size, STEPS, BATCH)
    losses, values = digits_reference.train(data, world_size, STEPS, BATCH)
    ulp = 0
    for run in runs:
        ulp = max(ulp, max_ulp(run.losses, losses), *(max_ulp(run.values[name], values[name]) for name in values))
    first = runs[0]
    counters = first.counters
    print(f"  held-out accuracy {100 * first.accuracy:.2f} %, largest difference from the unsharded run {ulp} ulp")
    reference = {
        "mode": "python-reference", "ranks": world_size, "backend": "none", "losses": hex_floats(losses), "max_ulp": 0,
        "peak_bytes_measured": 4 * sum(value.nbytes for value in values.values()),
        "peak_bytes_formula": 4 * sum(tensor_bytes(n_out, n_in + 1) for _, n_in, n_out in digits_math.LAYERS),
        "counts": {},
    }  # fmt: skip
    sharded = {
        "mode": "python", "ranks": world_size, "backend": first.backend, "losses": hex_floats(first.losses),
        "max_ulp": ulp, "accuracy": first.accuracy,
        "peak_bytes_measured": first.memory.peak_bytes + first.optimizer_bytes,
        "peak_bytes_formula": memory_formula(digits_math.LAYERS, world_size, host_storage=False),
        "counts": {
            name: getattr(counters, name)
            for name in ("all_gathers", "reduce_scatters", "all_reduces", "wire_bytes", "copies", "prefetch_hits")
        },
    }  # fmt: skip
    return [reference, sharded], first


def run_c(program: Path, world_size: int) -> tuple[list[dict[str, Any]], list[int]]:
    import digits_math

    print(f"C, {world_size} ranks, parameters in memory of the program, freed at every reshard", flush=True)
    result = OUT / f"c_{world_size}.json"
    ended = subprocess.run([program, OUT / "digits.csv", str(world_size), str(STEPS), result], check=False)
    if not result.exists():
        raise SystemExit(f"demo: {program} ended with {ended.returncode} and left no result")
    reference, sharded = json.loads(result.read_text())
    sharded["peak_bytes_measured"] = (
        sharded.pop("library_peak_bytes") + sharded.pop("host_peak_bytes") + sharded.pop("optimizer_bytes")
    )
    sharded["peak_bytes_formula"] = memory_formula(digits_math.LAYERS, world_size, host_storage=True)
    whole = 4 * sum(tensor_bytes(n_out, n_in + 1) for _, n_in, n_out in digits_math.LAYERS)
    reference |= {"peak_bytes_measured": whole, "peak_bytes_formula": whole, "counts": {}}
    lent = sharded.pop("host_bytes_over_step")
    if ended.returncode != 0 and sharded["max_ulp"] == 0 and sharded["accuracy"] >= GOOD_ACCURACY:
        raise SystemExit(f"demo: {program} ended with {ended.returncode}")
    return [reference, sharded], lent


# ---- What is shown ---------------------------------------------------------------------------------------------------


def draw(results: list[dict[str, Any]], over_time: list[tuple[str, int]], lent: list[int], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4.2), layout="constrained")
    for result in results:
        if "accuracy" in result:
            losses = [float.fromhex(loss) for loss in result["losses"]]
            left.plot(losses, linewidth=1, label=f"{result['mode']}, {result['ranks']} ranks")
    left.set(title="Loss, equal to the unsharded run bit for bit", xlabel="step", ylabel="loss", yscale="log")
    left.legend()
    middle.plot([size / 1024 for _, size in over_time], drawstyle="steps-post", marker=".")
    middle.set_xticks(range(len(over_time)), [moment for moment, _ in over_time], rotation=60, ha="right")
    middle.set(title="Python, rank 0 of 4: all it holds, first steps", ylabel="KiB")
    right.plot([0, *(size / 1024 for size in lent)], drawstyle="steps-post")
    right.set(title="C, rank 0 of 4: full parameters over one step", xlabel="request", ylabel="KiB")
    for axes in (middle, right):
        axes.margins(y=0.1)
        axes.set_ylim(bottom=0)
    figure.savefig(path, dpi=110)


def print_table(results: list[dict[str, Any]]) -> None:
    print(f"\n{'run':<18} ranks  accuracy  max ulp  peak bytes of rank 0: measured  formula")
    for result in results:
        accuracy = f"{100 * result['accuracy']:.2f} %" if "accuracy" in result else "-"
        print(
            f"{result['mode']:<18} {result['ranks']:>5}  {accuracy:>8}  {result['max_ulp']:>7}"
            f"  {result['peak_bytes_measured']:>30,}  {result['peak_bytes_formula']:>7,}"
        )


def faults_of(results: list[dict[str, Any]]) -> list[str]:
    faults = []
    for result in results:
        name = f"{result['mode']}, {result['ranks']} ranks"
        if result["max_ulp"] != 0:
            faults.append(f"{name}: differs from the unsharded run by {result['max_ulp']} ulp; 0 is required")
        if result.get("accuracy", 1) < GOOD_ACCURACY:
            faults.append(f"{name}: accuracy {result['accuracy']:.4f} is below {GOOD_ACCURACY}")
        measured, formula = result["peak_bytes_measured"], result["peak_bytes_formula"]
        if measured != formula:
            faults.append(f"{name}: rank 0 held {measured} bytes at its peak, the formula says {formula}")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    build = parser.parse_args().build.resolve()
    program = build / "examples" / "digits"
    for needed in (program, build / "python" / "tpfsdp" / "capi.py"):
        if not needed.exists():
            print(f"demo: {needed} is missing; `make build` makes it", file=sys.stderr)
            return 2
    sys.path[:0] = [str(build / "python"), str(ROOT / "examples" / "python")]

    started = time.monotonic()
    OUT.mkdir(parents=True, exist_ok=True)
    for name in ("results.json", "trace.json", "digits.png", *(f"c_{world_size}.json" for world_size in WORLDS)):
        (OUT / name).unlink(missing_ok=True)
    (OUT / "digits.csv").write_bytes(gzip.decompress((ROOT / "data" / "digits.csv.gz").read_bytes()))
    if fault := os.environ.get("TPFSDP_FAULT"):
        print(f"TPFSDP_FAULT={fault}: this run must fail\n")

    results: list[dict[str, Any]] = []
    for world_size in WORLDS:
        entries, first = run_python(world_size)
        results += entries
    for world_size in WORLDS:
        entries, lent = run_c(program, world_size)
        results += entries
    (OUT / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (OUT / "trace.json").write_text(first.trace)
    draw(results, first.memory_over_time, lent, OUT / "digits.png")

    print_table(results)
    faults = faults_of(results)
    for fault in faults:
        print(f"demo: {fault}", file=sys.stderr)
    print(f"\n{OUT.relative_to(ROOT)}/: results.json, trace.json, digits.png; {time.monotonic() - started:.1f} s")
    print("demo: failed" if faults else "demo: passed, every loss and parameter equals the unsharded run")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
