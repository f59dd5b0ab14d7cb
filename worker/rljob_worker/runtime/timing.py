"""Where a step's time goes: what trains the policy, and the rest."""

from __future__ import annotations

from rljob_worker.scalars import Scalars, mean

PRODUCTIVE = (
    "time/generation_seconds",
    "time/forward_seconds",
    "time/backward_seconds",
    "time/optimizer_seconds",
    "time/collectives_seconds",
)
"""Generation, forward, backward, optimizer and collectives. The rest of a step is data plane, waiting and Python."""


def productive_seconds(metrics: Scalars) -> float:
    """Seconds of one worker's step spent in `PRODUCTIVE`; each adds up over the calls of the step."""
    return sum(metrics[name].sum for name in PRODUCTIVE if name in metrics)


def add_up_times(metrics: Scalars) -> Scalars:
    """One worker's times of a step: calls of one name add up, so that a mean over workers is seconds per step."""
    return {
        name: mean(scalar.sum) if name.startswith("time/") and scalar.kind == "mean" else scalar
        for name, scalar in metrics.items()
    }
