"""Seconds per GRPO step: `rljob run` against TRL's `GRPOTrainer`, the same model, prompts, group size and lengths.

    python benchmarks/end_to_end.py [--cases quickstart ragged] [--processes 1 2] [--pairs 3] [--prompts 16] [--quick]

Two cases. `quickstart`: 64 rows of 48 tokens, on the tiny model. `ragged`: 512 rows whose lengths are log-normal with
mean 64 and at most 512, on a model that draws them itself; see `grpo_step/ragged_model.py`. Each with one process and
with two, on all cores together.

The systems run in turn, TRL first, `--pairs` times over; a pair is one run of each. A step lasts until the next one
begins, with everything that happens between: loading, generation, reward, advantages, update, bookkeeping. The first
steps of a run do not count. The ratio is TRL's median over ours. TRL gets a venv of its own under the user's cache
directory, installed on the first run; how it is tuned is in `grpo_step/trl_train.py`.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from grpo_step import ours, theirs
from grpo_step.cases import CASES, StepCase, quick
from grpo_step.timing import Timing, table


def main() -> None:
    options = parser().parse_args()
    # of both systems: threads that spin while they wait take the cores of whatever else runs, here the data buffer
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    theirs.venv()
    for name in options.cases:
        case = quick(CASES[name]) if options.quick else CASES[name]
        case = replace(case, prompts=options.prompts or case.prompts)
        for processes in options.processes:
            threads = options.threads or max(1, (os.cpu_count() or 1) // processes)
            print(
                f"{case.name}: {case.rows} rows, at most {case.max_response_tokens} tokens, {processes} process(es), "
                f"{threads} thread(s) each; goal {case.goal}",
                flush=True,
            )
            pairs = measure(case, options.out.resolve(), processes, threads, 1 if options.quick else options.pairs)
            print("\n".join(table(pairs)), flush=True)


def measure(case: StepCase, out: Path, processes: int, threads: int, num_pairs: int) -> list[tuple[Timing, Timing]]:
    """(TRL, ours) of each pair."""
    data = out / case.name
    case.make(data)
    settings = {"processes": processes, "threads": threads}
    return [
        (theirs.run(case, data, out, seed=seed, **settings), ours.run(case, data, out, seed=seed, **settings))
        for seed in range(num_pairs)
    ]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=None, help="of a step, where the case's own take too long")
    parser.add_argument("--threads", type=int, default=None, help="per process; otherwise the cores, shared")
    parser.add_argument("--quick", action="store_true", help="one pair of three steps, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("runs/end-to-end"), help="models, logs and run directories")
    return parser


if __name__ == "__main__":
    main()
