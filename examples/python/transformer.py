# SPDX-License-Identifier: Apache-2.0
"""A character-level transformer, trained sharded: each block is a unit of its own, the root owns the embedding, whose
values are also the output's weight. NumPy computes; see transformer_math.py.

    python examples/python/transformer.py --ranks 2                   # ranks are threads of this process; a minute
    tpfsdp-run -n 2 python examples/python/transformer.py             # ranks are processes; or torchrun, mpirun, srun
    python examples/python/transformer.py --ranks 3 --steps 10 --recompute --compare

The last line is the result as JSON. With --compare the unsharded run follows, and the exit status is 1 where a loss or
a parameter differs by one unit in the last place, or the memory is not what the formula says.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # ranks are the threads; and equal bits need equal splitting

import argparse
import dataclasses
import json
import time
from typing import Any

import numpy as np

import tpfsdp
import transformer_math as math
import transformer_reference as reference
from digits_math import AdamW
from transformer_data import Text, load
from transformer_model import DRIVES, Transformer

COUNTED = ("all_gathers", "reduce_scatters", "all_reduces", "wire_bytes", "copies", "prefetch_hits")


@dataclasses.dataclass
class Run:
    """What one rank has to tell."""

    losses: list[np.floating]
    values: math.Arrays
    bits: tuple[float, float]  # per held-out character, before and after
    peak_bytes: int
    kept_bytes: int
    counts: dict[str, int]
    ranks: int
    backend: str


def held_out_bits(rank: tpfsdp.Context, model: Transformer, text: Text, pieces: int, length: int) -> float:
    """Bits per character. Ranks gather together, so each takes as many pieces as the others."""
    tokens, targets = text.held_out_pieces(length)
    count = len(tokens) // rank.world_size
    mine = slice(rank.rank * count, (rank.rank + 1) * count)
    tokens, targets, total = tokens[mine], targets[mine], 0.0
    with tpfsdp.no_grad(model):
        for start in range(0, count, pieces):
            now = slice(start, start + pieces)
            total += float(model.drive.forward(model, tokens[now], targets[now])) * len(tokens[now])
    return float(rank.group.all_reduce(np.float64(total / count / np.log(2)), op="avg"))


def train(rank: tpfsdp.Context, text: Text, shape: math.Shape, options: argparse.Namespace) -> Run:
    drive = DRIVES[options.drive]()
    model = Transformer(math.initial_values(shape), shape, drive, options.recompute)
    for block in model.blocks:
        tpfsdp.fully_shard(block)
    tpfsdp.fully_shard(model)
    tpfsdp.prepare(model)
    before = held_out_bits(rank, model, text, options.batch, shape.length)
    rank.counters(reset=True)
    optimizer, losses, kept_bytes = AdamW(), [], 0
    for step in range(options.steps):
        loss = drive.forward(model, *text.micro_batch(step, rank.rank, options.batch, shape.length))
        kept_bytes = model.kept_bytes()
        drive.backward(model)
        drive.end_backward(model)
        # Gradients are averaged, and this rank's rows may be written now.
        optimizer.lr = math.learning_rate(step, options.steps)
        optimizer.begin_step()
        for name, param in model.named_parameters():
            optimizer.update(name, param.shard, param.grad)
        model.zero_grad()
        losses.append(rank.group.all_reduce(loss, op="avg"))
        if rank.rank == 0 and (step % 50 == 0 or step == options.steps - 1):
            print(f"  step {step:4d}  loss {losses[-1]:.4f}, {losses[-1] / np.log(2):.3f} bits", flush=True)
    counters = rank.counters()
    peak_bytes = model.memory_info().peak_bytes + optimizer.state_bytes()
    after = held_out_bits(rank, model, text, options.batch, shape.length)
    with tpfsdp.scope(model):
        values = {name: param.full.copy() for name, param in model.named_parameters()}
    counts = {name: getattr(counters, name) for name in COUNTED}
    return Run(losses, values, (before, after), peak_bytes, kept_bytes, counts, rank.world_size, rank.backend)


def result(first: Run, others: list[Run], text: Text, shape: math.Shape, options: argparse.Namespace) -> dict[str, Any]:
    """As JSON will have it; ``max_ulp`` is null where nothing was compared."""
    ulp = None
    if options.compare:
        losses, values = reference.train(text, shape, first.ranks, options.steps, options.batch)
        expected = {"losses": np.array(losses), **values}
        ulp = max(
            reference.max_ulp({"losses": np.array(run.losses), **run.values}, expected) for run in (first, *others)
        )
    return {
        "mode": f"transformer-{options.drive}{'-recompute' if options.recompute else ''}",
        "ranks": first.ranks, "backend": first.backend, "losses": [float(loss).hex() for loss in first.losses],
        "max_ulp": ulp, "bits_before": first.bits[0], "bits_after": first.bits[1], "unigram_bits": text.unigram_bits(),
        "peak_bytes_measured": first.peak_bytes, "peak_bytes_formula": reference.peak_bytes(shape, first.ranks),
        "kept_activation_bytes": first.kept_bytes, "counts": first.counts,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, help="threads; without it this process is one rank, as its launcher says")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=8, help="pieces of text for each rank and step")
    parser.add_argument("--drive", choices=DRIVES, default="manual")
    parser.add_argument("--recompute", action="store_true", help="blocks keep their input only, and run forward again")
    parser.add_argument("--compare", action="store_true", help="with the unsharded run, bit for bit")
    options = parser.parse_args()

    text = load()
    shape = math.Shape(text.symbols)
    started = time.monotonic()
    if options.ranks:
        first, *others = tpfsdp.run_ranks(options.ranks, train, text, shape, options)
    else:
        with tpfsdp.Context() as rank:
            first, others = train(rank, text, shape, options), []
        if rank.rank != 0:
            return 0
    print(
        f"held-out text: {first.bits[0]:.3f} bits a character before, {first.bits[1]:.3f} after, "
        f"{text.unigram_bits():.3f} for who knows only how often each is; {time.monotonic() - started:.1f} s"
    )
    found = result(first, others, text, shape, options)
    print(json.dumps(found))
    return 1 if found["max_ulp"] or found["peak_bytes_measured"] != found["peak_bytes_formula"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
