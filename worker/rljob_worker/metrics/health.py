"""Whether a run learns: what its metrics say of a collapse, with the evidence and the field to change. Pure.

A rule looks at the last steps and at how the run began. Rewards have no scale of their own, so a rise is measured by
their standard deviation over the rows of the first step, and a fall also by that of the best ones.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rljob_worker.metrics.by_policy import by_policy

STEPS = 3
"""Successive steps that a rule looks at, as single ones are noisy."""
SILENT_STEPS = 10
"""A warning is repeated only if it has not been true for as many steps."""

Record = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class HealthWarning:
    """Something that keeps a run from learning."""

    name: str
    """As `kubectl describe` has it, `GroupsAlike`."""
    step: int
    text: str
    """Cause, evidence, and what to change."""
    policy: str | None = None
    """In a job with several."""


class HealthMonitor:
    """Looks at a run's records as they come."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        """weights: of the job's rewards, by name."""
        self._weights = weights or {}
        self._histories: dict[str | None, _History] = {}
        self._last_true: dict[tuple[str | None, str], int] = {}
        self.present: tuple[HealthWarning, ...] = ()
        """All that is true after the last step."""

    def observe(self, record: Mapping[str, float | None]) -> list[HealthWarning]:
        """What is new to say after a step; nothing of step 0, which is the validation before the first."""
        metrics_there = {name: value for name, value in record.items() if value is not None}
        step = int(metrics_there["step"])
        fresh, present = list[HealthWarning](), list[HealthWarning]()
        parts = by_policy(metrics_there)
        of_job = parts.pop(None)
        for policy, metrics in (parts or {None: {}}).items():
            history = self._histories.setdefault(policy, _History(self._weights))
            history.add({**of_job, **metrics})
            for name, text in history.problems():
                key = (policy, name)
                present.append(HealthWarning(name, step, text, policy))
                if step - self._last_true.get(key, -SILENT_STEPS - 1) > SILENT_STEPS:
                    fresh.append(present[-1])
                self._last_true[key] = step
        self.present = tuple(present)
        return fresh


def health_of(records: Iterable[Mapping[str, float | None]], weights: Mapping[str, float] | None = None) -> list[str]:
    """Lines that sum a run up: each warning as it was last given, in the order of its first."""
    monitor, lines = HealthMonitor(weights), dict[tuple[str | None, str], str]()
    for record in records:
        for warning in monitor.observe(record):
            lines[warning.policy, warning.name] = line_of(warning)
    return list(lines.values())


def reward_weights(spec: Mapping[str, Any]) -> dict[str, float]:
    """The job's rewards by name. spec: as its file has it."""
    return {reward["name"]: float(reward.get("weight", 1.0)) for reward in spec.get("rewards") or ()}


def line_of(warning: HealthWarning) -> str:
    """`step 4: …`"""
    return f"step {warning.step}: {f'policy {warning.policy}: ' if warning.policy else ''}{warning.text}"


class _History:
    """One policy's steps: the first, the last few, and the best mean reward of as many."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.weights = weights
        self.first: Record | None = None
        self.last: deque[Record] = deque(maxlen=STEPS)
        self.best = -math.inf
        self.best_spread = 0.0
        """Standard deviation of rewards over the rows of those steps."""
        self.gradients: deque[float] = deque(maxlen=50)
        """Norms of steps before the last few."""
        self.largest: dict[str, float] = {}
        """The weighted mean of each reward, where it was farthest from 0."""

    def add(self, metrics: Record) -> None:
        if "reward/mean" not in metrics:
            return
        if len(self.last) == STEPS and (norm := self.last[0].get("update/gradient_norm")):
            self.gradients.append(norm)
        self.first = self.first or metrics
        self.last.append(metrics)
        if len(self.last) == STEPS and (mean := self.mean("reward/mean")) > self.best:
            self.best, self.best_spread = mean, fmean(self.values("reward/std") or [0.0])
        for name, weight in self.weights.items():
            share = abs(weight * metrics.get(f"reward/{name}", 0.0))
            self.largest[name] = max(share, self.largest.get(name, 0.0))

    def problems(self) -> list[tuple[str, str]]:
        """Names and texts of the rules that hold now."""
        if self.first is None or len(self.last) < STEPS:
            return []
        return [(name, text) for name, rule in RULES.items() if (text := rule(self))]

    def values(self, name: str) -> list[float]:
        """What the last steps have; empty where one of them has none."""
        result = [record[name] for record in self.last if record.get(name) is not None]
        return result if len(result) == STEPS else []

    def mean(self, name: str) -> float:
        return fmean(self.values(name) or [math.nan])

    def began(self, name: str) -> float:
        return math.nan if self.first is None else self.first.get(name, math.nan)

    @property
    def has_learnt(self) -> bool:
        """Whether the reward stands above its beginning by a fifth of its deviation over rows. One that did not differ
        within groups then says which questions came, and nothing of the policy."""
        spread = self.began("reward/std")
        if self.began("reward/zero_variance_groups") >= 0.9:
            return False
        return spread > 0 and self.mean("reward/mean") > self.began("reward/mean") + 0.2 * spread


def _groups_alike(history: _History) -> str | None:
    values = history.values("reward/zero_variance_groups")
    if not values or min(values) < 0.9 or history.has_learnt:
        return None
    return (
        f"in {min(values):.0%} of groups all answers have the same reward ({history.mean('reward/mean'):.4g} in the "
        f"mean of {STEPS} steps), so that nothing is learnt from them; see with `rljob samples` whether rewards tell "
        "answers apart, take problems that are neither too hard nor too easy, or raise rollout.temperature"
    )


def _entropy_collapsed(history: _History) -> str | None:
    values, began = history.values("policy/entropy"), history.began("policy/entropy")
    if not values or max(values) >= min(0.05, 0.1 * began) or history.has_learnt:
        return None
    return (
        f"the policy's entropy fell from {began:.3g} to {values[-1]:.3g} nats a token and the reward did not rise, "
        "so that it always says the same; lower training.learningRate, or raise algorithm.kl.coefficient"
    )


def _no_gradient(history: _History) -> str | None:
    values = history.values("update/gradient_norm")
    if not values or max(values) > 1e-12 or history.has_learnt:
        return None
    return (
        f"the gradient has been 0 for {STEPS} steps, so that weights do not change; rewards that do not differ within "
        "groups, or a learning signal that is clipped or filtered away altogether, make it so: see reward/std and "
        "policy/clip_fraction"
    )


def _gradient_exploded(history: _History) -> str | None:
    values = history.values("update/gradient_norm")
    if not values or len(history.gradients) < STEPS:
        return None
    usual = sorted(history.gradients)[len(history.gradients) // 2]
    if min(values) <= 100 * usual:
        return None
    return (
        f"the gradient's norm is {min(values):.3g} and was {usual:.3g}; lower training.learningRate, or set "
        "training.maxGradNorm"
    )


def _kl_runs_away(history: _History) -> str | None:
    values = history.values("kl/reference")
    if not values or min(values) <= (3.0 if history.has_learnt else 1.0):
        return None
    return (
        f"the policy is {values[-1]:.3g} nats a token away from its reference; lower training.learningRate, or raise "
        "algorithm.kl.coefficient"
    )


def _answers_cut_off(history: _History) -> str | None:
    values = history.values("response/truncated_fraction")
    if "simulator/success" in history.last[-1]:
        return None  # an episode of a policy that does not succeed yet goes on to rollout.simulator.maxSteps
    longer = history.mean("response_length/mean") > 3 * history.began("response_length/mean")
    if not values or min(values) < (0.3 if longer and not history.has_learnt else 0.8):
        return None
    grown = f" and responses grew to {history.mean('response_length/mean'):.0f} tokens" if longer else ""
    return (
        f"{min(values):.0%} of responses are cut off{grown}; raise rollout.maxResponseTokens, or reward short answers"
    )


def _reward_falls(history: _History) -> str | None:
    # rewards that are rarely given hardly differ at first, and means of rows that differ more are noisier
    now, spread = history.mean("reward/mean"), max(history.began("reward/std"), history.best_spread)
    if not spread > 0 or history.best - now <= 0.75 * spread:
        return None
    return (
        f"the reward fell from {history.best:.4g} to {now:.4g} (means of {STEPS} steps); go on from an earlier "
        "checkpoint with a lower training.learningRate, and see whether kl/reference or response_length/mean ran away"
    )


def _one_reward_dominates(history: _History) -> str | None:
    ranked = sorted(((share, name) for name, share in history.largest.items() if share > 0), reverse=True)
    if len(ranked) < 2 or ranked[0][0] < 50 * ranked[1][0]:
        return None
    (most, name), (next_most, second) = ranked[:2]
    return (
        f"reward {name} weighs {most:.3g} where {second}, the next, weighs {next_most:.3g} at most, and counts for "
        "nothing; change `weight` of rewards so that they are of one size"
    )


def _rewards_slow(history: _History) -> str | None:
    rewards, steps = history.values("time/reward_seconds"), history.values("time/step_seconds")
    if not rewards or not steps or min(rewards) < 1.0 or any(r < 0.6 * s for r, s in zip(rewards, steps, strict=True)):
        return None
    return (
        f"rewards take {fmean(rewards):.3g} of the {fmean(steps):.3g} s of a step; make the function faster or async, "
        "or give pods more processors"
    )


_MISSED = re.compile(r"reward/([^/]+)/(?:errors|timeouts)_total")


def _rewards_fail(history: _History) -> str | None:
    failing = set[str].intersection(
        *(
            {match[1] for name, value in record.items() if value and (match := _MISSED.fullmatch(name))}
            for record in history.last
        )
    )
    if not failing:
        return None
    return (
        f"reward {', '.join(sorted(failing))} fails or times out in each of {STEPS} steps, and counts 0 there; see the "
        "worker's log, and timeoutSeconds and onError of the reward"
    )


RULES: Mapping[str, Callable[[_History], str | None]] = {
    "GroupsAlike": _groups_alike,
    "EntropyCollapsed": _entropy_collapsed,
    "NoGradient": _no_gradient,
    "GradientExploded": _gradient_exploded,
    "KLRunsAway": _kl_runs_away,
    "ResponsesCutOff": _answers_cut_off,
    "RewardFalls": _reward_falls,
    "OneRewardDominates": _one_reward_dominates,
    "RewardsSlow": _rewards_slow,
    "RewardsFail": _rewards_fail,
}
