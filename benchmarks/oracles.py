"""Our algorithms beside those of verl 0.9.1, TRL 1.16.0 and siiRL 0.2.0, in float64: values and gradients.

    python benchmarks/oracles.py [--batches 4]

Both sides get the same random ragged batches; theirs run in a venv of their own under the user's cache directory
(`peer_functions/venv.py`, installed on the first run). Prints one table: per function and system the largest
difference relative to the largest magnitude, and below it the reason of every difference above 1e-9. Exits with 1 on
a difference without a reason, and on a reason without a difference.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
from peer_functions import ours, venv
from peer_functions.batches import BATCHES, Arrays
from peer_functions.reasons import REASONS

TOLERANCE = 1e-9
SYSTEMS = ("verl", "TRL", "siiRL")
Cell = tuple[str, str, str]
"""Function, with `(edge)` where the batch is an edge batch; system; value or gradient."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=4, help="random batches of each kind")
    result = measure(parser.parse_args().batches)
    print("\n".join(table(result)))
    wrong = mistakes(result)
    print("\n".join(wrong) or f"{len(result)} comparisons; every difference above {TOLERANCE} has its reason")
    sys.exit(1 if wrong else 0)


def measure(num_batches: int) -> dict[Cell, str]:
    """The worst difference of each cell over all batches as text: a number, or what was raised."""
    worst: dict[Cell, float] = defaultdict(float)
    raised: dict[Cell, str] = {}
    cases = [(kind, make(seed)) for kind, make in BATCHES.items() for seed in range(num_batches)]
    for (kind, arrays), theirs in zip(cases, peers([arrays for _, arrays in cases]), strict=True):
        mine = ours.results(arrays)
        for key, array in theirs.items():
            system, name, quantity = key.split("|")
            cell = (f"{name} (edge)" if kind == "edge" else name, system, quantity)
            if quantity == "error":
                raised[cell] = str(array)
            else:
                worst[cell] = max(worst[cell], difference(mine[f"{name}|{quantity}"], array))
    return {cell: f"{number:.0e}" for cell, number in worst.items()} | raised


def peers(batches: list[Arrays]) -> list[Arrays]:
    """What `theirs.py` makes of each batch."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for index, arrays in enumerate(batches):
            np.savez(directory / f"batch-{index}.npz", **arrays)
        venv.run("theirs.py", name)
        return [dict(np.load(directory / f"results-{index}.npz")) for index in range(len(batches))]


def difference(mine: np.ndarray, theirs: np.ndarray) -> float:
    """Largest difference over the largest magnitude; infinite where only one side is finite."""
    if not np.array_equal(np.isfinite(mine), np.isfinite(theirs)):
        return float("inf")
    scale = max(float(np.abs(mine).max(initial=0.0)), 1e-300)
    return float(np.abs(mine - theirs).max(initial=0.0)) / scale


def is_equal(text: str) -> bool:
    try:
        return float(text) <= TOLERANCE
    except ValueError:
        return False


def table(result: dict[Cell, str]) -> list[str]:
    """Markdown: functions down, systems across; a number points to a reason below."""
    numbers = {reason: str(index) for index, reason in enumerate(dict.fromkeys(REASONS.values()), 1)}
    functions = dict.fromkeys(name for name, _, _ in result)
    lines = ["| function | " + " | ".join(SYSTEMS) + " |", "|---" * (1 + len(SYSTEMS)) + "|"]
    for function in functions:
        cells = [_text(function, system, result, numbers) for system in SYSTEMS]
        lines.append(f"| {function} | " + " | ".join(cells) + " |")
    return [*lines, "", *(f"{number}. {reason}" for reason, number in numbers.items()), ""]


def _text(function: str, system: str, result: dict[Cell, str], numbers: dict[str, str]) -> str:
    parts = []
    for quantity in ("value", "gradient", "error"):
        cell = (function, system, quantity)
        if cell in result:
            mark = f" ({numbers[REASONS[cell]]})" if cell in REASONS else ""
            parts.append(("raises" if quantity == "error" else f"{quantity} {result[cell]}") + mark)
    return ", ".join(parts) or "–"


def mistakes(result: dict[Cell, str]) -> list[str]:
    """Differences without a reason, reasons without a difference."""
    unexplained = [
        f"UNEXPLAINED {cell}: {text}" for cell, text in result.items() if not is_equal(text) and cell not in REASONS
    ]
    stale = [f"REASON WITHOUT A DIFFERENCE {cell}" for cell in REASONS if cell not in result or is_equal(result[cell])]
    return unexplained + stale


if __name__ == "__main__":
    main()
