# SPDX-License-Identifier: Apache-2.0
"""The handwritten digits of data/digits.csv.gz: 1797 images of 8 x 8 pixels, and who sees which of them when."""

from __future__ import annotations

import dataclasses
import gzip
from pathlib import Path

import numpy as np

PATH = Path(__file__).resolve().parents[2] / "data" / "digits.csv.gz"
CLASSES = 10
HELD_OUT = 5  # every fifth image is never trained on


@dataclasses.dataclass(frozen=True)
class Digits:
    """Pixels in [0, 1], float32, ``[n, 64]``, and labels ``[n]``."""

    train_x: np.ndarray
    train_y: np.ndarray
    test_x: np.ndarray
    test_y: np.ndarray

    def order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng(epoch).permutation(len(self.train_y))

    def micro_batch(self, step: int, rank: int, world_size: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """What ``rank`` sees in ``step``: the same whether ranks are threads or the turns of one process."""
        per_epoch = len(self.train_y) // (world_size * size)
        epoch, turn = divmod(step, per_epoch)
        start = (turn * world_size + rank) * size
        rows = self.order(epoch)[start : start + size]
        return self.train_x[rows], self.train_y[rows]


def load(path: Path = PATH) -> Digits:
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    x, y = (table[:, :-1] / 16).astype(np.float32), table[:, -1]
    held_out = np.arange(len(y)) % HELD_OUT == 0
    return Digits(x[~held_out], y[~held_out], x[held_out], y[held_out])
