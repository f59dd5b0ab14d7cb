"""The few metrics of a step that `/progress` reports, and so `kubectl get rljob -o yaml`."""

import math
from collections.abc import Mapping

from rljob_worker.metrics.by_policy import label_and_name

MAX_METRICS = 32
"""What the status of an RLJob holds."""

_FIRST = (
    "reward/mean",
    "reward/std",
    "validation/accuracy",
    "response_length/mean",
    "response/truncated_fraction",
    "loss/policy",
    "loss/value",
    "kl/reference",
    "kl/old",
    "mismatch/k3",
    "policy/entropy",
    "policy/clip_fraction",
    "policy/clip_fraction_low",
    "policy/clip_fraction_high",
    "update/gradient_norm",
    "update/learning_rate",
    "sampling/acceptance",
    "throughput/tokens_per_second",
    "time/step_seconds",
    "time/overhead_fraction",
    "time/trainers_idle_seconds",
    "time/generators_idle_seconds",
    "rollout/groups_in_flight",
    "partial/rows_unfinished",
    "partial/age_mean",
    "data/bytes_total",
)
_THEN = ("reward/", "training/", "validation/")
"""Families that a user named: parts of the reward, reward and accuracy by source."""


def headline(metrics: Mapping[str, float]) -> dict[str, float]:
    """At most MAX_METRICS of them, the most telling first; only finite ones, for JSON knows no others."""
    places = {name: place for place, name in enumerate(_FIRST)}
    result = [
        (policy or "", places[bare], name)
        for name in metrics
        for policy, bare in (label_and_name(name),)
        if bare in places
    ]
    names = [name for policy, place, name in sorted(result, key=lambda item: (item[0] != "", item[1], item[0]))]
    names += [name for name in sorted(metrics) if name.startswith(_THEN) and name not in _FIRST]
    finite = [name for name in names if math.isfinite(metrics[name])]
    return {name: metrics[name] for name in finite[:MAX_METRICS]}
