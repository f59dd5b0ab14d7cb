"""What the Plan of a job says of a worker in each phase, beside what the engines of that worker take.

    python benchmarks/planned_memory.py [--ways "as it is" adapter ...] [--size 512x8] [--tokens 1024]

Each way is a job: its fields, n workers that train, and one that generates. The engines are built of its plan as
workers build them, and asked, updated and synced as its stages do, with rows of full length, four of each prompt.
Private memory (`private_memory`) of the worker that has most, in MiB, beyond what it had after a tiny model of the same
job: `load` when models are there, `train`, `generate` and `sync` at the peak of the second step. What waits on a host
counts on both sides: on a CPU it is the same memory.

Exits with 1 where the Plan is off by more than 15 %, and names the phase.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from figures import Figure, exit_code
from planned_phases.cases import WAYS, planned
from planned_phases.measured import Sizes, measure
from private_memory import MIB
from sized_models import write_model

from rljob_api.planning.plan import Plan
from rljob_worker.engines.tests.ranks import run_fresh_ranks

OFF = 0.15
HEAD = ("| model | way | workers | group | phase | plan | measured | |", "|---|---|--:|---|---|--:|--:|--:|")


def estimates(made: Plan) -> dict[str, Sizes]:
    """By worker group and phase."""
    result = {}
    for group in made.memory:
        # gradients come to the host when those that added up are gone
        (waiting,) = (item.host for item in group.phases if item.phase == "load")
        result[group.group] = {item.phase: (item.peak + waiting) / MIB for item in group.phases}
    return result


def lines(name: str, options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, Figure]]:
    way, (hidden, layers) = WAYS[name], map(int, options.size.split("x"))
    written = partial(run_fresh_ranks, 1, write_model, folder / "writing")
    shape = way.vocabulary, way.key_heads, way.family
    written(256, 2, shape[0], folder / "tiny", *shape[1:])
    (count,) = written(hidden, layers, shape[0], folder / "model", *shape[1:])
    tiny, made = planned(way, 104, folder / "tiny"), planned(way, options.tokens, folder / "model")
    estimate = estimates(made)
    for group, sizes in measure(tiny, made, folder / "run").items():
        for phase, size in sizes.items():
            ratio = estimate[group][phase] / size
            cells = f"{group} | {phase} | {estimate[group][phase]:.0f} | {size:.0f} | {ratio - 1:+.0%}"
            line = f"| {way.family}, {count / 1e6:.0f} M | {name} | {way.workers} | {cells.replace('-', '−')} |"
            yield line, Figure(f"{name}, {phase} of {group}, plan / measured", ratio, 1 - OFF, 1 + OFF)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="WAY")
    parser.add_argument("--size", default="512x8")
    parser.add_argument("--tokens", type=int, default=1024, help="of a micro-batch, about")
    options = parser.parse_args()
    print(*HEAD, sep="\n")
    figures = []
    for name in options.ways:
        with tempfile.TemporaryDirectory() as folder:
            for line, figure in lines(name, options, Path(folder)):
                print(line, flush=True)
                figures.append(figure)
    return exit_code(figures)


if __name__ == "__main__":
    sys.exit(main())
