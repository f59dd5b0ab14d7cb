"""A worker's figures of a step: where its time goes, what it moved."""

from __future__ import annotations

from collections.abc import Mapping

from rljob_worker.scalars import Scalars, mean, total

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


def data_metrics(figures: Mapping[str, float]) -> Scalars:
    """The client's `figure/edge`: what was put as `data/bytes_<edge>`, the rest as `data/<figure>/<edge>`."""
    metrics: Scalars = {}
    for name, value in figures.items():
        figure, _, edge = name.partition("/")
        if figure == "put_bytes":
            metrics[f"data/bytes_{edge}"] = total(value)
        else:
            metrics[f"data/{figure}/{edge}"] = mean(value) if figure.endswith("_seconds") else total(value)
    return metrics
