"""Rewards on the first rows of the data: which can be tried, what each is given, and what its answers mean. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rljob_api.v1alpha1 import RewardSpec, RLJobSpec
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_api.vocabulary.problem import Problem
from rljob_worker.rehearsal.finding import Finding
from rljob_worker.rehearsal.functions.reference import RewardTrial
from rljob_worker.rewards.running.chunks import NO_STEPS

TRIED_ROWS = 4
ANSWERED_ROWS = 2
"""Those of them whose response is an answer of the data, where a reward names one; that of the others is their prompt,
which is none."""

Row = Mapping[str, Any]


def trials_of(spec: RLJobSpec, rows: Sequence[Row]) -> dict[str, RewardTrial]:
    """By path of the reward in the job. None without rows, of rewards that ask services or servers, and of those that
    are called after a conversation or an episode, which nobody has played yet."""
    if not rows or spec.rollout.played is not None:
        return {}
    return {
        f"spec.rewards[{i}].run": RewardTrial(
            f'reward "{reward.name}"',
            reward.run,
            dict(reward.options),
            [_row_of(reward, row) for row in rows],
            reward.timeout_seconds,
        )
        for i, reward in enumerate(spec.rewards)
        if reward.model is None and not reward.asks_service and not reward.network
    }


def _row_of(reward: RewardSpec, row: Row) -> dict[str, Any]:
    return {**row, "reference": row[reward.column]} if reward.column is not None else dict(row)


def judged_rewards(
    spec: RLJobSpec, outcomes: Mapping[str, Sequence[Mapping[str, Any]]]
) -> tuple[list[Finding], list[str]]:
    """Rewards that fail on every row, which end the job at its first step; and a sentence on each that fails on some,
    which may. outcomes: of each reward's rows, by path."""
    failing, doubtful = list[Finding](), list[str]()
    for i, reward in enumerate(spec.rewards):
        path = f"spec.rewards[{i}].run"
        problems = [_problem(reward, outcome) for outcome in outcomes.get(path, ())]
        if not any(problems):
            continue
        message = _message(reward, problems)
        if all(problems) and reward.on_error == "Fail" and "timeout" not in outcomes[path][0]:
            fix = "Correct the function, or write onError: Zero to have such rows count as 0."
            failing.append(Finding(Problem(path, reward.run, message, fix), ExitCode.BAD_DATA))
        else:
            doubtful.append(message)
    return failing, doubtful


def _message(reward: RewardSpec, problems: Sequence[str]) -> str:
    """problems: of each row, some of which are empty."""
    first = next(i for i, problem in enumerate(problems) if problem)
    return (
        f'reward "{reward.name}" {problems[first]}, tried on row {first + 1} of the data with a response from there; '
        f"{sum(map(bool, problems))} of {len(problems)} rows ended so"
    )


def _problem(reward: RewardSpec, outcome: Mapping[str, Any]) -> str:
    if "timeout" in outcome:
        return f"took longer than its timeoutSeconds: {reward.timeout_seconds:g}, after which a run takes 0"
    if reward.spread == "Steps" and "problem" not in outcome and "step_rewards" not in outcome:
        return NO_STEPS
    return str(outcome.get("problem", "")).encode(errors="backslashreplace").decode()  # half a pair cannot be printed
