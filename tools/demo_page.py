# SPDX-License-Identifier: Apache-2.0
"""The pictures of the demo: loss, memory over time, who owns what; as a PNG, and as one HTML page with all the rest."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import Any


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


def table(head: list[str], rows: list[list[str]]) -> str:
    def row(cells: list[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + row(head, "th") + "".join(row(cells, "td") for cells in rows) + "</table>"


def results_table(results: list[dict[str, Any]]) -> str:
    rows = [
        [
            result["mode"], str(result["ranks"]), result["backend"],
            f"{100 * result['accuracy']:.2f} %" if "accuracy" in result else "", str(result["max_ulp"]),
            f"{result['peak_bytes_measured']:,}", f"{result['peak_bytes_formula']:,}",
        ]
        for result in results
    ]  # fmt: skip
    head = ["run", "ranks", "backend", "accuracy", "max ulp", "peak bytes of rank 0", "formula"]
    return table(head, rows)


def owners_table(owned: list[dict[str, list[int]]]) -> str:
    """Of each rank: name -> first row, rows, all rows."""
    rows = []
    for name, (_, _, total) in owned[0].items():
        cells = [name, str(total)]
        for mine in owned:
            first, count, _ = mine[name]
            cells.append(f"{first} to {first + count - 1}" if count else "none")
        rows.append(cells)
    return table(["parameter", "rows", *(f"rank {rank}" for rank in range(len(owned)))], rows)


def write_page(
    path: Path, picture: Path, results: list[dict[str, Any]], owned: list[dict[str, list[int]]],
    shows: list[tuple[str, list[str]]],
) -> None:  # fmt: skip
    image = base64.b64encode(picture.read_bytes()).decode()
    parts = [
        "<!doctype html><meta charset=utf-8><title>tpfsdp demo</title>",
        "<style>body{font:15px sans-serif;max-width:70em;margin:2em auto}table{border-collapse:collapse}"
        "td,th{border:1px solid #bbb;padding:.2em .6em;text-align:right}pre{background:#f4f4f4;padding:.8em;"
        "white-space:pre-wrap}img{max-width:100%}</style>",
        "<h1>tpfsdp: the demo</h1>",
        "<h2>Every run equals the unsharded one bit for bit</h2>", results_table(results),
        f"<h2>Loss, and memory over time</h2><img alt='loss and memory' src='data:image/png;base64,{image}'>",
        f"<h2>Who owns what, {len(owned)} ranks</h2>", owners_table(owned),
    ]  # fmt: skip
    for title, lines in shows:
        parts.append(f"<h2>{html.escape(title)}</h2><pre>{html.escape(chr(10).join(lines))}</pre>")
    path.write_text("\n".join(parts) + "\n")
