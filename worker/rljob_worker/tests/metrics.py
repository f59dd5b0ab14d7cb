"""What two runs of the same job must agree on."""

from __future__ import annotations

import json
import math
from functools import partial

from rljob_worker.tests.jobs import Run

HOW_IT_WAS_SPLIT = ("data/", "update/micro_batches", "critic/update/micro_batches")


def without_times(metrics: list[dict[str, float]], *others: str) -> list[dict[str, float]]:
    """Metrics of every step but those that measure the machine. `others`: prefixes of more to leave out."""
    machine = ("time/", "throughput/", "data/bytes_total", "rollout/groups_in_flight", *others)
    words = ("weights/", "_seconds")
    return [
        {
            name: value
            for name, value in step.items()
            if not name.startswith(machine) and not any(w in name for w in words)
        }
        for step in metrics
    ]


def samples(run: Run) -> dict[tuple[int, bool, int], tuple[str, float]]:
    """Response and reward of some rows, by step, whether it validates, and row; of which, depends on who has them."""
    said = map(json.loads, (run.directory / "samples.jsonl").read_text().splitlines())
    return {(one["step"], "validation" in one, one["row"]): (one["response"], one["reward"]) for one in said}


def assert_learnt_the_same(run: Run, one: Run, precision: float) -> None:
    """As many steps as `run` has done, which `one` has done as well. precision: relative."""
    steps = [step["step"] for step in run.metrics]
    assert steps == list(range(len(steps))) and 1 < len(steps) <= len(one.metrics)
    close = partial(math.isclose, rel_tol=precision, abs_tol=1e-12)
    pairs = zip(*(without_times(item.metrics, *HOW_IT_WAS_SPLIT) for item in (one, run)), strict=False)
    for expected, result in pairs:
        assert result.keys() == expected.keys()
        others = {name: (result[name], expected[name]) for name in result if not close(result[name], expected[name])}
        assert not others, f"step {result['step']}: {others}"
        assert result["step"] == 0 or result["update/gradient_norm"] > 0
    common = samples(one).keys() & samples(run).keys()
    assert {step for step, is_validation, _ in common if not is_validation} == set(steps) - {0}
    assert {row: samples(run)[row] for row in common} == {row: samples(one)[row] for row in common}
