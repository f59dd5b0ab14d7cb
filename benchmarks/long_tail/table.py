"""The table of `async.py tail`: policies beside each other, medians and spread over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from long_tail.engine import MEDIAN
from long_tail.schedules import Case, TailFigures, run_case
from long_tail.slots import NUM_SLOTS, ROW_COST, STEP_COST

QUANTUM = MEDIAN // 3
WAITS = "Wait"
CASES = (
    *(Case(size, WAITS) for size in (8, 16)),
    *(Case(size, "Carry", QUANTUM) for size in (8, 16)),
    *(Case(size, "Discard") for size in (8, 16)),
    *(Case(8, "Carry", quantum) for quantum in (QUANTUM // 2, MEDIAN, 2 * MEDIAN)),
    *(Case(8, policy, quantum, ROW_COST) for policy, quantum in ((WAITS, None), ("Carry", QUANTUM), ("Carry", MEDIAN))),
)
HEAD = ("groups", "policy", "Q", "prefill", "tokens/unit", "of Wait", "idle", "trained on", "correlation", "age, max")


def print_table(num_seeds: int) -> None:
    """Run all cases with that many seeds."""
    print(f"{NUM_SLOTS} slots, step cost {STEP_COST} + {ROW_COST:.5f} a row, median {MEDIAN}, {num_seeds} seeds")
    print(_line(HEAD))
    waiting = dict[tuple[int, float], list[TailFigures]]()
    for case in CASES:
        runs = [run_case(case, seed) for seed in range(num_seeds)]
        if case.policy == WAITS:
            waiting[case.batch_size, case.prefill_cost] = runs
        print(_line(_cells(case, runs, waiting[case.batch_size, case.prefill_cost])), flush=True)


def _cells(case: Case, runs: Sequence[TailFigures], waiting: Sequence[TailFigures]) -> tuple[str, ...]:
    """Figures of a case; its speed also beside that of runs of the same seeds that wait."""
    ratios = [run.tokens_per_time / other.tokens_per_time for run, other in zip(runs, waiting, strict=True)]
    return (
        str(case.batch_size),
        case.policy,
        "" if case.quantum is None else str(case.quantum),
        "b" if case.prefill_cost else "0",
        f"{statistics.median(run.tokens_per_time for run in runs):.1f}",
        _spread(ratios, ".2f"),
        _spread([run.idle_share for run in runs], ".1%"),
        f"{min(run.trained_share for run in runs):.1%}",
        _spread([run.correlation for run in runs], ".2f"),
        f"{statistics.mean(run.age_mean for run in runs):.1f}, {max(run.age_max for run in runs):.0f}",
    )


def _spread(values: Sequence[float], form: str) -> str:
    """Median, and in brackets the least and the most."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def _line(cells: Sequence[str]) -> str:
    widths = (6, 7, 4, 7, 11, 20, 23, 10, 22, 9)
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
