"""Seconds per step of one run and what they went to, in parts that both systems have."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PARTS = ("generation", "forward", "backward", "optimizer", "collectives", "weight_sync")
"""`rest` is the step without them: batches, rewards, advantages, rows on their way, bookkeeping."""


@dataclass(frozen=True)
class Timing:
    """Medians over the counted steps of one run."""

    seconds: float
    parts: Mapping[str, float]
    response_tokens: float
    """Of all processes."""
    longest: float

    @staticmethod
    def of(steps: Sequence[Mapping[str, float]]) -> Timing:
        """From steps with `seconds`, `response_tokens`, `longest` and any of `PARTS`."""

        def median(name: str) -> float:
            return statistics.median(step.get(name, 0.0) for step in steps)

        parts = {name: median(name) for name in PARTS}
        rest = max(0.0, median("seconds") - sum(parts.values()))
        return Timing(median("seconds"), parts | {"rest": rest}, median("response_tokens"), median("longest"))


def table(pairs: Sequence[tuple[Timing, Timing]]) -> list[str]:
    """Lines about (TRL, ours) of every pair: the ratios, then what the medians are made of."""
    ratios = [trl.seconds / ours.seconds for trl, ours in pairs]
    lines = [
        f"  pair {number}: TRL {trl.seconds:8.3f} s  rljob {ours.seconds:8.3f} s  ratio {ratio:5.2f}"
        for number, ((trl, ours), ratio) in enumerate(zip(pairs, ratios, strict=True), 1)
    ]
    lines.append(f"  ratio: median {statistics.median(ratios):.2f}, min {min(ratios):.2f}, max {max(ratios):.2f}")
    lines.append("  seconds  " + "".join(f"{name:>13}" for name in (*PARTS, "rest", "tokens", "longest")))
    for name, timings in (("TRL", [pair[0] for pair in pairs]), ("rljob", [pair[1] for pair in pairs])):
        parts = [statistics.median(timing.parts[part] for timing in timings) for part in (*PARTS, "rest")]
        tokens = statistics.median(timing.response_tokens for timing in timings)
        longest = statistics.median(timing.longest for timing in timings)
        lines.append(f"  {name:9}" + "".join(f"{x:13.3f}" for x in parts) + f"{tokens:13.0f}{longest:13.0f}")
    return lines
