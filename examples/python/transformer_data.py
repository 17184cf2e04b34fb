# SPDX-License-Identifier: Apache-2.0
"""The text of data/devil.txt.gz as numbers of symbols, and who sees which piece of it when."""

from __future__ import annotations

import dataclasses
import gzip
from pathlib import Path

import numpy as np

PATH = Path(__file__).resolve().parents[2] / "data" / "devil.txt.gz"
HELD_OUT = 0.1  # the last tenth is never trained on

Batch = tuple[np.ndarray, np.ndarray]
"""Symbols and those that follow them, both ``[pieces, length]``."""


@dataclasses.dataclass(frozen=True)
class Text:
    """Numbers below ``symbols``, one for each character."""

    symbols: int
    train: np.ndarray
    held_out: np.ndarray

    def micro_batch(self, step: int, rank: int, pieces: int, length: int) -> Batch:
        """What ``rank`` sees in ``step``: the same whether ranks are threads, processes or the turns of one process."""
        starts = np.random.default_rng((step, rank)).integers(0, len(self.train) - length, pieces)
        places = starts[:, None] + np.arange(length)
        return self.train[places], self.train[places + 1]

    def held_out_pieces(self, length: int) -> Batch:
        """All of the held-out text, in pieces that do not overlap."""
        end = (len(self.held_out) - 1) // length * length
        return self.held_out[:end].reshape(-1, length), self.held_out[1 : end + 1].reshape(-1, length)

    def unigram_bits(self) -> float:
        """Bits per held-out character for who knows nothing but how often each symbol is in the training text."""
        counts = np.bincount(self.train, minlength=self.symbols) + 1.0  # none is impossible
        return float(-np.log2(counts / counts.sum())[self.held_out].mean())


def load(path: Path = PATH) -> Text:
    with gzip.open(path) as file:
        symbols, text = np.unique(np.frombuffer(file.read(), np.uint8), return_inverse=True)
    end = round(len(text) * (1 - HELD_OUT))
    return Text(len(symbols), text[:end], text[end:])
