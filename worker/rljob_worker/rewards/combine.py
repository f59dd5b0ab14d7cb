"""From one number per reward and row to the row's reward and the step's metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rljob_worker.metrics.scalars import Scalar, mean, mean_of, total

if TYPE_CHECKING:
    from rljob_worker.rewards.results import Missed

Rewards = NDArray[np.float64]


def combine(rewards: Rewards, weights: Sequence[float]) -> Rewards:
    """The weighted sum of every row's rewards: [rows, num_rewards] and [num_rewards] -> [rows].

    Added in the order of the job, so that the result is the same bit for bit wherever the row is.
    """
    assert rewards.shape[1] == len(weights), "one weight per reward"
    combined = np.zeros(len(rewards))
    for column, weight in enumerate(weights):
        combined += weight * rewards[:, column]
    return combined


def joined_rewards(parts: Mapping[int, Rewards], num_rows: int) -> Rewards:
    """Rewards of rows as the job lists them: the place of each reward and its [rows] -> [rows, num_rewards]."""
    columns = [parts[place] for place in sorted(parts)]
    return np.stack(columns, axis=1) if columns else np.zeros((num_rows, 0))


def metrics(
    names: Sequence[str],
    rewards: Rewards,
    extra: Sequence[Sequence[Mapping[str, float]]],
    *,
    exactly: bool = False,
) -> dict[str, Scalar]:
    """`reward/<name>` of every reward, `reward/<name>/<key>` of every number it returned besides it.

    rewards: [rows, num_rewards].   extra: [num_rewards][rows] dicts.   exactly: with what sums leave of exact ones.
    """
    scalars = {f"reward/{name}": mean_of(rewards[:, i], exactly=exactly) for i, name in enumerate(names)}
    for name, rows in zip(names, extra, strict=True):
        for key in sorted({key for row in rows for key in row}):
            values = [row[key] for row in rows if key in row]
            scalars[f"reward/{name}/{key}"] = (
                mean_of(np.array(values, float), exactly=True) if exactly else mean(sum(values), len(values))
            )
    return scalars


def misses(missed: Sequence[Missed], num_retries: Mapping[str, int]) -> dict[str, Scalar]:
    """`reward/timeouts_total` of all rewards; of a reward that had any also `reward/<name>/timeouts_total`,
    `…/errors_total` and `…/retries_total`."""
    scalars = {"reward/timeouts_total": total(sum(item.kind == "timeouts" for item in missed))}
    for (name, kind), count in Counter((item.reward, item.kind) for item in missed).items():
        scalars[f"reward/{name}/{kind}_total"] = total(count)
    return scalars | {f"reward/{name}/retries_total": total(count) for name, count in num_retries.items()}


def services(use: Mapping[str, Mapping[str, float]]) -> dict[str, Scalar]:
    """Metrics of each service: `service/<name>/seconds` of a request, `…/queue_seconds` of a row before it,
    `…/requests_total` and `…/errors_total`."""
    scalars: dict[str, Scalar] = {}
    for name, of in use.items():
        scalars |= {
            f"service/{name}/seconds": mean(of.get("seconds", 0.0), of.get("requests", 0)),
            f"service/{name}/queue_seconds": mean(of.get("queue_seconds", 0.0), of.get("rows", 0)),
            f"service/{name}/requests_total": total(of.get("requests", 0)),
            f"service/{name}/errors_total": total(of.get("errors", 0)),
        }
    return scalars
