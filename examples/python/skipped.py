# SPDX-License-Identifier: Apache-2.0
"""One rank leaves out a collective that the others call. Nobody hangs: every rank hears what each of them was about to
do, and after a reset of the group the ranks go on together.

    tpfsdp-run -n 4 python examples/python/skipped.py
"""

import numpy as np

import tpfsdp


def say(text: str) -> None:
    print(f"{text}\n", end="", flush=True)  # in one piece, since four processes share the output


with tpfsdp.Context() as rank:
    values = np.full(1000, rank.rank, np.float32)
    try:
        if rank.rank != 2:
            rank.group.all_reduce(values)
        rank.group.all_gather(values)
        raise SystemExit("the ranks did different things, and nobody noticed")
    except tpfsdp.Mismatch as error:
        say(f"rank {rank.rank}: {error}")
    rank.group.reset()
    total = rank.group.all_reduce(np.float32(rank.rank))
    say(f"rank {rank.rank}: after the reset the ranks' numbers add up to {total:g}")
