# SPDX-License-Identifier: Apache-2.0
"""What the demo shows beside training: a model that fits into no process, a rank that is killed, and a rank that does
something else than its peers. Each returns the lines it printed and what was wrong with them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RANKS = 4
LAYERS, LIMIT_MIB = 112, 128
SOON_S = 1.0  # from the death of a rank to the error of the others

Shown = tuple[list[str], list[str]]


def show(title: str) -> None:
    print(f"\n{title}", flush=True)


def does_not_fit(build: Path) -> Shown:
    show(f"A model whose training state is {4 * LAYERS / LIMIT_MIB:.1f} times what a process may hold")
    program = [build / "examples" / "does_not_fit", str(LAYERS), str(LIMIT_MIB)]
    lines, faults = [], []
    alone = subprocess.run(program, check=False, capture_output=True, text=True, env=os.environ | {"RANK": "0", "WORLD_SIZE": "1"})  # fmt: skip
    lines += (alone.stdout + alone.stderr).splitlines()
    if alone.returncode == 0 or "memory" not in alone.stderr:
        faults.append("does_not_fit: one process held what is too large for it, or did not say why it could not")
    together = subprocess.run([build / "tpfsdp-run", "-n", str(RANKS), *program], check=False, capture_output=True, text=True)  # fmt: skip
    lines += (together.stdout + together.stderr).splitlines()
    found = re.findall(r"peak ([\d.]+) MiB .* are ([\d.]+) MiB", together.stdout)
    peaks = [float(peak) for peak, _ in found]
    if together.returncode != 0 or len(peaks) != RANKS or max(peaks) >= LIMIT_MIB:
        faults.append(f"does_not_fit: {RANKS} ranks ended with {together.returncode}, peaks {peaks} MiB of {LIMIT_MIB}")
    for peak, formula in found:
        if float(peak) > 1.01 * float(formula) + 4:
            faults.append(f"does_not_fit: a peak of {peak} MiB is more than the formula's {formula} MiB and 4 MiB")
    print("\n".join(f"  {line}" for line in lines), flush=True)
    return lines, faults


def process_of_rank(rank: int, mark: str) -> int:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # ended meanwhile
        if f"RANK={rank}".encode() in variables and f"TPFSDP_DEMO={mark}".encode() in variables and b"digits.py" in command:
            return int(folder.name)
    raise SystemExit(f"demo: no process is rank {rank}")


def killed(environment: dict[str, str], build: Path) -> Shown:
    show("kill -9 of rank 2 in the middle of training")
    mark = str(os.getpid())
    program = [sys.executable, ROOT / "examples" / "python" / "digits.py", "--steps", "1000000"]
    run = subprocess.Popen(
        [build / "tpfsdp-run", "-n", str(RANKS), *program], env=environment | {"TPFSDP_DEMO": mark}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    lines: list[str] = []
    told: list[float] = []

    def listen() -> None:
        for line in run.stderr:
            if "is lost" in line:
                told.append(time.monotonic())
            if "is lost" in line or "tpfsdp-run:" in line:
                lines.append(line.rstrip())

    listener = threading.Thread(target=listen)
    listener.start()
    for line in run.stdout:
        if "step   50" in line:
            break
    victim = process_of_rank(2, mark)
    died = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    run.stdout.read()
    code = run.wait()
    listener.join()
    faults = []
    survivors = sum("is lost" in line for line in lines)
    if code != 128 + signal.SIGKILL or survivors < RANKS - 1:
        faults.append(f"killed: tpfsdp-run ended with {code}, and {survivors} ranks told that rank 2 is lost")
    elif max(told) - died > SOON_S:
        faults.append(f"killed: the others were told after {max(told) - died:.2f} s")
    if told:
        lines.append(f"first error {1000 * (min(told) - died):.0f} ms after the kill, last {1000 * (max(told) - died):.0f} ms")
    print("\n".join(f"  {line}" for line in lines), flush=True)
    return lines, faults


def skipped(environment: dict[str, str], build: Path) -> Shown:
    show("Rank 2 leaves out a collective that the others call")
    program = [sys.executable, ROOT / "examples" / "python" / "skipped.py"]
    run = subprocess.run([build / "tpfsdp-run", "-n", str(RANKS), *program], env=environment, check=False, capture_output=True, text=True)  # fmt: skip
    lines = sorted((run.stdout + run.stderr).splitlines(), key=lambda line: line[: len("rank 0")])
    mismatches = sum("all-reduce" in line and "all-gather" in line for line in lines)
    faults = []
    if run.returncode != 0 or mismatches != RANKS or sum("add up to 6" in line for line in lines) != RANKS:
        faults.append(f"skipped: ended with {run.returncode}, {mismatches} of {RANKS} ranks named both operations")
    print("\n".join(f"  {line}" for line in lines), flush=True)
    return lines, faults
