# SPDX-License-Identifier: Apache-2.0
"""The main job: trains the digits classifier sharded over 2 and 4 ranks, in Python and in C, as threads and as
processes, and compares every loss and every parameter with the unsharded run of the same language. Then it shows what
sharding is for: a model that fits into no process, and what the ranks say when one of them is killed, or does something
else than the others. `make demo` runs it.

Prints losses, accuracy and memory; writes build/demo/results.json, trace.json, digits.png and demo.html. Ends with 1
where a run differs by one unit in the last place, the memory is not what the formula says, the accuracy is low, or a
failure is not told as it should be.

    tools/demo.py [--build build/release]       which build's library, binding and C example
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"  # equal bits need products that are split alike

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import demo_page
import demo_troubles
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
    print(f"Python, {world_size} ranks that are threads, parameters in memory of the library")
    runs = digits.run(data, world_size, STEPS, BATCH)
    losses, values = digits_reference.train(data, world_size, STEPS, BATCH)
    ulp = 0
    for run in runs:
        ulp = max(ulp, max_ulp(run.losses, losses), *(max_ulp(run.values[name], values[name]) for name in values))
    first = runs[0]
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
        "counts": first.counters,
    }  # fmt: skip
    return [reference, sharded], first


def environment_of(build: Path) -> dict[str, str]:
    """For programs that use the binding of this build."""
    path = os.pathsep.join([str(build / "python"), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path}


def run_processes(build: Path, world_size: int) -> tuple[dict[str, Any], list[dict[str, list[int]]]]:
    """The same as processes, which `tpfsdp-run` starts; and which rows each rank has."""
    import digits_data
    import digits_math
    import digits_reference

    print(f"Python, {world_size} ranks that are processes", flush=True)
    folder = OUT / "processes"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    command = [build / "tpfsdp-run", "-n", str(world_size), sys.executable, ROOT / "examples" / "python" / "digits.py",
               "--steps", str(STEPS), "--batch", str(BATCH), "--save", folder]  # fmt: skip
    ended = subprocess.run(command, check=False, env=environment_of(build))
    if ended.returncode != 0:
        raise SystemExit(f"demo: {command[0]} ended with {ended.returncode}")
    losses, values = digits_reference.train(digits_data.load(), world_size, STEPS, BATCH)
    ulp = 0
    for rank in range(world_size):
        with np.load(folder / f"rank_{rank}.npz") as found:
            ulp = max(ulp, max_ulp(found["losses"], losses), *(max_ulp(found[name], values[name]) for name in values))
            losses_found = list(found["losses"])
    told = [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(world_size)]
    first = told[0]
    print(f"  held-out accuracy {100 * first['accuracy']:.2f} %, largest difference from the unsharded run {ulp} ulp")
    sharded = {
        "mode": "python-processes", "ranks": world_size, "backend": first["backend"],
        "losses": hex_floats(losses_found), "max_ulp": ulp, "accuracy": first["accuracy"],
        "peak_bytes_measured": first["peak_bytes"] + first["optimizer_bytes"],
        "peak_bytes_formula": memory_formula(digits_math.LAYERS, world_size, host_storage=False),
        "counts": first["counters"],
    }  # fmt: skip
    return sharded, [rank["owned"] for rank in told]


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


def run_transformer(build: Path, drive: str, world_size: int, processes: bool) -> dict[str, Any]:
    """A short training of the character-level transformer, compared with its unsharded run."""
    kind = "processes" if processes else "threads"
    print(f"Transformer, {world_size} ranks that are {kind}, driven by {drive}", flush=True)
    program = [sys.executable, ROOT / "examples" / "python" / "transformer.py", "--steps", "20", "--batch", "4",
               "--drive", drive, "--compare", "--recompute"]  # fmt: skip
    launch = [build / "tpfsdp-run", "-n", str(world_size)] if processes else []
    command = [*launch, *program, *([] if processes else ["--ranks", str(world_size)])]
    ended = subprocess.run(command, check=False, env=environment_of(build), stdout=subprocess.PIPE, text=True)
    lines = ended.stdout.splitlines()
    if not lines or not lines[-1].startswith("{"):
        raise SystemExit(f"demo: {program[1]} ended with {ended.returncode} and left no result")
    print("  " + lines[-2])
    result = json.loads(lines[-1])
    if ended.returncode != 0 and result["max_ulp"] == 0:
        raise SystemExit(f"demo: {program[1]} ended with {ended.returncode}")
    return result


def run_c_transformer(build: Path, world_size: int, processes: bool) -> dict[str, Any]:
    """The same model in C, smaller; its names and its memory are those of the Python one."""
    import transformer_data
    import transformer_math
    import transformer_reference

    kind = "processes" if processes else "threads"
    print(f"Transformer in C, {world_size} ranks that are {kind}", flush=True)
    text = OUT / "devil.txt"
    text.write_bytes(gzip.decompress(transformer_data.PATH.read_bytes()))
    shape = transformer_math.Shape(transformer_data.load().symbols, length=32, width=48)
    program = build / "examples" / "transformer"
    options = ["--steps", "20", "--batch", "4", "--length", str(shape.length), "--width", str(shape.width),
               "--held-out", "256", "--recompute", "--compare"]  # fmt: skip
    launch = [build / "tpfsdp-run", "-n", str(world_size)] if processes else []
    command = [*launch, program, text, *options, *([] if processes else ["--ranks", str(world_size)])]
    ended = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    lines = ended.stdout.splitlines()
    if not lines or not lines[-1].startswith("{"):
        raise SystemExit(f"demo: {program} ended with {ended.returncode} and left no result")
    print("  " + lines[-3])
    result = json.loads(lines[-1])
    result["peak_bytes_formula"] = transformer_reference.peak_bytes(shape, world_size)
    if ended.returncode != 0 and result["max_ulp"] == 0:
        raise SystemExit(f"demo: {program} ended with {ended.returncode}")
    return result


# ---- What is shown ---------------------------------------------------------------------------------------------------


def print_table(results: list[dict[str, Any]]) -> None:
    print(f"\n{'run':<29} ranks  accuracy  max ulp  peak bytes of rank 0: measured  formula")
    for result in results:
        accuracy = f"{100 * result['accuracy']:.2f} %" if "accuracy" in result else "-"
        print(
            f"{result['mode']:<29} {result['ranks']:>5}  {accuracy:>8}  {result['max_ulp']:>7}"
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
    needs = (*(build / "examples" / name for name in ("digits", "does_not_fit", "transformer")), build / "tpfsdp-run",
             build / "python" / "tpfsdp" / "capi.py")  # fmt: skip
    for needed in needs:
        if not needed.exists():
            print(f"demo: {needed} is missing; `make build` makes it", file=sys.stderr)
            return 2
    sys.path[:0] = [str(build / "python"), str(ROOT / "examples" / "python")]

    started = time.monotonic()
    OUT.mkdir(parents=True, exist_ok=True)
    for name in ("results.json", "trace.json", "digits.png", "demo.html", *(f"c_{world_size}.json" for world_size in WORLDS)):
        (OUT / name).unlink(missing_ok=True)
    (OUT / "digits.csv").write_bytes(gzip.decompress((ROOT / "data" / "digits.csv.gz").read_bytes()))
    if fault := os.environ.get("TPFSDP_FAULT"):
        print(f"TPFSDP_FAULT={fault}: this run must fail\n")

    results: list[dict[str, Any]] = []
    for world_size in WORLDS:
        entries, first = run_python(world_size)
        results += entries
    processes, owned = run_processes(build, WORLDS[-1])
    results.append(processes)
    for world_size in WORLDS:
        entries, lent = run_c(program, world_size)
        results += entries
    results += [
        run_transformer(build, "manual", 2, processes=False),
        run_transformer(build, "call", 4, processes=True),
        run_transformer(build, "segment", 2, processes=True),
        run_c_transformer(build, 2, processes=False),
        run_c_transformer(build, 4, processes=True),
    ]
    (OUT / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (OUT / "trace.json").write_text(first.trace)
    demo_page.draw(results, first.memory_over_time, lent, OUT / "digits.png")
    print_table(results)
    faults = faults_of(results)

    shows = []
    if not faults:
        for title, (lines, wrong) in (
            ("A model that fits into no process", demo_troubles.does_not_fit(build)),
            ("kill -9 of rank 2", demo_troubles.killed(environment_of(build), build)),
            ("Rank 2 leaves out a collective", demo_troubles.skipped(environment_of(build), build)),
        ):
            shows.append((title, lines))
            faults += wrong
    demo_page.write_page(OUT / "demo.html", OUT / "digits.png", results, owned, shows)
    for fault in faults:
        print(f"demo: {fault}", file=sys.stderr)
    print(f"\n{OUT.relative_to(ROOT)}/: results.json, trace.json, digits.png, demo.html; {time.monotonic() - started:.1f} s")
    print("demo: failed" if faults else "demo: passed, every loss and parameter equals the unsharded run")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
