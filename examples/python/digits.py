# SPDX-License-Identifier: Apache-2.0
"""A digits classifier, trained sharded: NumPy computes, tpfsdp keeps each rank's rows, gathers a layer just in time and
averages the gradients.

    python examples/python/digits.py --ranks 4                        # ranks are threads of this process
    tpfsdp-run -n 4 python examples/python/digits.py                  # ranks are processes; or torchrun, mpirun, srun

The environment variable TPFSDP_FAULT plants an error, to show that the demo would see one: ``scale_grad:1.01`` scales
every rank's gradients, ``drop_rank:1`` makes rank 1 contribute zeros.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # ranks are the threads; and equal bits need equal splitting

import argparse
import dataclasses
import json
from pathlib import Path

import numpy as np

import digits_math as math
import tpfsdp
from digits_data import Digits, load


@dataclasses.dataclass(frozen=True)
class Fault:
    """How this rank's gradients are spoiled; 1: not at all."""

    factor: np.float32 = np.float32(1)

    @classmethod
    def of_rank(cls, rank: int) -> Fault:
        kind, _, value = os.environ.get("TPFSDP_FAULT", "").partition(":")
        if kind == "scale_grad":
            return cls(np.float32(value))
        if kind == "drop_rank" and rank == int(value):
            return cls(np.float32(0))
        return cls()


class Linear(tpfsdp.Module):
    def __init__(self, weight: np.ndarray, bias: np.ndarray, fault: Fault) -> None:
        super().__init__()
        self.weight = tpfsdp.Parameter(weight)
        self.bias = tpfsdp.Parameter(bias)
        self.fault = fault

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x = x
        return math.linear(x, self.weight.full, self.bias.full)  # all rows: they are here until forward is over

    def backward(self, dy: np.ndarray) -> np.ndarray:
        with self.weight.grad_buffer() as dw, self.bias.grad_buffer() as db:
            dx = math.linear_backward(dy, self.x, self.weight.full, dw, db)
            if self.fault.factor != 1:
                dw *= self.fault.factor
                db *= self.fault.factor
        return dx


class Classifier(tpfsdp.Module):
    def __init__(self, values: dict[str, np.ndarray], fault: Fault) -> None:
        super().__init__()
        for name, _, _ in math.LAYERS:
            self.add_module(name, Linear(values[f"{name}.weight"], values[f"{name}.bias"], fault))

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.h1 = math.relu(self.fc1(x))
        self.h2 = math.relu(self.fc2(self.h1))
        return self.fc3(self.h2)

    def backward(self, dy: np.ndarray) -> np.ndarray:
        d2 = self.fc3.run_backward(dy) * (self.h2 > 0)
        d1 = self.fc2.run_backward(d2) * (self.h1 > 0)
        return self.fc1.run_backward(d1)


@dataclasses.dataclass
class Run:
    """What one rank has to tell."""

    losses: list[np.float32]
    values: dict[str, np.ndarray]
    accuracy: float
    memory: tpfsdp.MemoryInfo
    optimizer_bytes: int
    memory_over_time: list[tuple[str, int]]
    counters: dict[str, int]
    trace: str
    backend: str
    owned: dict[str, tuple[int, int, int]]  # of each parameter: this rank's first row, its rows, all rows

    def save(self, path: Path) -> None:
        """For who started this process: numbers in ``path``.npz, the rest in ``path``.json."""
        np.savez(path.with_suffix(".npz"), losses=np.array(self.losses), **self.values)
        rest = {
            "accuracy": self.accuracy, "peak_bytes": self.memory.peak_bytes, "optimizer_bytes": self.optimizer_bytes,
            "memory_over_time": self.memory_over_time, "counters": self.counters, "backend": self.backend,
            "owned": self.owned,
        }  # fmt: skip
        path.with_suffix(".json").write_text(json.dumps(rest))


COUNTED = ("all_gathers", "reduce_scatters", "all_reduces", "wire_bytes", "copies", "prefetch_hits")


def train(rank: tpfsdp.Context, data: Digits, steps: int, batch: int, report: bool) -> Run:
    model = Classifier(math.initial_values(), Fault.of_rank(rank.rank))
    for layer in model.children():
        tpfsdp.fully_shard(layer)
    tpfsdp.fully_shard(model)
    optimizer = math.AdamW()
    losses: list[np.float32] = []
    memory_over_time: list[tuple[str, int]] = []

    def note(moment: str) -> None:
        if len(losses) < 3:
            memory_over_time.append((moment, model.memory_info().total_bytes + optimizer.state_bytes()))

    tpfsdp.prepare(model)
    note("sharded")
    for step in range(steps):
        if step == steps - 1:
            rank.clear_events()  # the trace is of the last step
        rank.mark(f"step {step}")
        x, y = data.micro_batch(step, rank.rank, rank.world_size, batch)
        loss, dlogits = math.cross_entropy(model(x), y)
        note("forward")
        model.run_backward(dlogits)
        note("backward")
        # Gradients are averaged, and this rank's rows may be written now.
        optimizer.begin_step()
        for name, param in model.named_parameters():
            optimizer.update(name, param.shard, param.grad)
        note("optimizer")
        model.zero_grad()
        losses.append(rank.group.all_reduce(loss, op="avg"))
        note("zero_grad")
        if report and rank.rank == 0 and (step % 50 == 0 or step == steps - 1):
            print(f"  step {step:4d}  loss {losses[-1]:.6f}", flush=True)
    owned = {}
    for name, param in model.named_parameters():
        info = param.shard_info()
        owned[name] = (info.offsets[0], info.local_shape[0], info.global_shape[0])
    counters = {name: getattr(rank.counters(), name) for name in COUNTED}
    trace = rank.chrome_trace()
    memory = model.memory_info()

    model.eval()
    with tpfsdp.no_grad(model):
        mine = slice(rank.rank, None, rank.world_size)
        hits = np.sum(model(data.test_x[mine]).argmax(axis=1) == data.test_y[mine])
    accuracy = float(rank.group.all_reduce(np.int64(hits))) / len(data.test_y)
    with tpfsdp.scope(model):
        values = {name: param.full.copy() for name, param in model.named_parameters()}
    return Run(
        losses, values, accuracy, memory, optimizer.state_bytes(), memory_over_time, counters, trace, rank.backend, owned
    )


def run(data: Digits, ranks: int, steps: int, batch: int, report: bool = True) -> list[Run]:
    """Trains on ``ranks`` threads of this process; what each of them has to tell."""
    return tpfsdp.run_ranks(ranks, train, data, steps, batch, report, event_capacity=4096)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=32, help="images for each rank and step")
    parser.add_argument("--trace", type=Path, help="file for a Chrome trace of the last step")
    parser.add_argument("--save", type=Path, help="folder where each process leaves what it has to tell")
    options = parser.parse_args()
    if "RANK" in os.environ:  # started as one of several processes
        with tpfsdp.Context(event_capacity=4096) as rank:
            first = train(rank, load(), options.steps, options.batch, True)
            if options.save:
                first.save(options.save / f"rank_{rank.rank}")
            if rank.rank != 0:
                return
    else:
        first = run(load(), options.ranks, options.steps, options.batch)[0]
    print(f"held-out accuracy {100 * first.accuracy:.2f} %")
    if options.trace:
        options.trace.write_text(first.trace)


if __name__ == "__main__":
    main()
