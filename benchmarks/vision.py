"""What pictures cost: bytes between hosts, memory over many steps, pixel work, updates.

    python benchmarks/vision.py [travel] [memory] [hidden] [update] [splits]

travel    bytes that cross between the hosts of a job that generates on one and trains on the other, with pictures of
          756 x 756; beside `pixel_values` of every row, and the same rows in verl's DataProto and TransferQueue
memory    private memory of all processes of a run, over 1,000 steps with pictures of 1 MB
hidden    seconds of a step whose decoder waits 20 ms for each picture, over those of one whose decoder does not wait
update    CPU seconds of the engine's optimizer step beside a loop by hand over the same packed rows
splits    loss and gradient in float64 on 1, 2 and 4 ranks and in micro-batches of any size, of rows with pictures of
          32 x 32 beside 768 x 768: largest difference from one rank with one micro-batch

A tiny Qwen2.5-VL in jobs; `splits` has a Qwen3-VL, whose towers take pictures of these sizes.

Exits with 1 where a figure misses its limit, and names it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from figures import Figure, exit_code
from picture_steps import hidden, many_steps, splits, travel, updates

from rljob_worker.tiny.make import make_model
from rljob_worker.tiny.recipe import quick, shapes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--prompts", type=int, default=2, help="of a step, in travel")
    parser.add_argument("--group-size", type=int, default=8, help="in travel")
    parser.add_argument("--steps", type=int, default=1000, help="in memory")
    parser.add_argument("--pairs", type=int, default=3, help="in hidden")
    parser.add_argument("--layouts", nargs="+", choices=hidden.LAYOUTS, default=list(hidden.LAYOUTS), help="in hidden")
    parser.add_argument("--rounds", type=int, default=5, help="in update")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        model = folder / "tiny" / "model"
        make_model(shapes(quick(steps=0)), folder / "tiny")
        parts: dict[str, Callable[[], list[Figure]]] = {
            "travel": lambda: travel.measure(model, folder, options.prompts, options.group_size),
            "memory": lambda: many_steps.measure(model, folder, options.steps),
            "hidden": lambda: hidden.measure(model, folder, options.pairs, options.layouts),
            "update": lambda: updates.measure(folder, options.rounds),
            "splits": lambda: splits.measure(folder),
        }
        return exit_code([figure for name in options.parts or parts for figure in parts[name]()])


if __name__ == "__main__":
    sys.exit(main())
