"""What the Plan says a worker of published models has in memory, beside what its engines take on a device without
numbers.

    python benchmarks/published_memory.py [--models "Qwen3 8B" ...] [--whole]

Jobs are those of `published_models/fitted.py`, as `rljob plan --fit` sets them. Every tensor that the engines of one
rank make is counted, until it is let go (`stub_device`): GiB at most in a phase, of the device, and of its host while a
checkpoint is copied. Layers are alike, and the count of a model is that of one with four of them, and for each further
one half of what one with six has more (`stub_device/worker.py`); with --whole all layers are there.

Exits with 1 where the Plan is off by more than 10 % in a phase, and names it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from figures import Figure, exit_code
from published_models.fitted import UNFITTED, fitted
from published_models.jobs import GIB, PublishedJob
from stub_device.worker import counted, counted_by_layers

from rljob_api.catalogue.profiles import DEFAULT
from rljob_api.memory.generation import row_cache_bytes
from rljob_api.memory.sizes import NUMBER_BYTES
from rljob_api.planning.planner import plan
from rljob_api.vocabulary.quantity import parse_quantity

OFF = 0.10
PHASES = ("load", "generate", "train", "sync")
HEAD = ("| model | phase | plan | counted | |", "|---|---|--:|--:|--:|")


def lines(job: PublishedJob, folder: Path, *, whole: bool) -> Iterator[tuple[str, Figure]]:
    made = plan(fitted(job).job, shapes={job.model: job.shape})
    (memory,) = made.memory
    planned = {phase.phase: phase for phase in memory.phases}
    device = parse_quantity(DEFAULT["nvidia-h100"].memory)
    (rollout,) = (engine for engine in made.engines if engine.kind == "Rollout")
    row = row_cache_bytes(job.shape, made.spec.longest_row, NUMBER_BYTES[made.precision], rollout.mesh.tp)
    count = counted if whole else counted_by_layers
    there = count(made, job.config, device, planned["generate"].cache // row, folder)
    sizes = {name: (planned[name].peak, there[name].device) for name in PHASES}
    sizes["checkpoint, host"] = planned["checkpoint"].host, there["checkpoint"].host
    for phase, (said, found) in sizes.items():
        ratio = said / found
        off = f"{ratio - 1:+.0%}".replace("-", "−")
        line = f"| {job.model} | {phase} | {said / GIB:.1f} | {found / GIB:.1f} | {off} |"
        yield line, Figure(f"{job.model}, {phase}, plan / counted", ratio, 1 - OFF, 1 + OFF)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [job.model for job in UNFITTED]
    parser.add_argument("--models", nargs="+", choices=names, default=names, metavar="MODEL")
    parser.add_argument("--whole", action="store_true", help="count all layers; takes minutes for each model")
    options = parser.parse_args()
    print(*HEAD, sep="\n")
    figures = []
    for job in UNFITTED:
        if job.model in options.models:
            with tempfile.TemporaryDirectory() as folder:
                for line, figure in lines(job, Path(folder), whole=options.whole):
                    print(line, flush=True)
                    figures.append(figure)
    return exit_code(figures)


if __name__ == "__main__":
    sys.exit(main())
