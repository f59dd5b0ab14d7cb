"""Trajectories that were played as rows of a batch: what was sampled is an action, what the world wrote is not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from rljob_api.catalogue.columns import ENVIRONMENT_REWARD, IMAGES, KEPT, MESSAGES, TURN_REWARDS
from rljob_api.v1alpha1 import SimulatorSpec
from rljob_worker.batch import Batch, Column
from rljob_worker.conversations.messages import Message
from rljob_worker.conversations.picture_parts import content_text
from rljob_worker.conversations.trajectory import TokenRow, Trajectory, failures, turn_rewards
from rljob_worker.data.dataset import Prompts
from rljob_worker.metrics.scalars import Scalars, maximum, mean, mean_of, total
from rljob_worker.row_index import Int64
from rljob_worker.stages.episode_rows import episode_columns
from rljob_worker.vision.picture_tokens import PLACE
from rljob_worker.vision.pictures import PictureList

CAUSES = ("error", "replay")
"""Causes of failure that any job may have: metrics have them where there are none, too."""
SHOWN_TURNS = 16
"""Turns whose rewards have a metric of their own."""


def played_batch(
    trajectories: Sequence[Trajectory],
    prompts: Prompts,
    ordinals: Int64,
    *,
    rows_per_trajectory: int,
    version: int,
    sees: bool = False,
    simulator: SimulatorSpec | None = None,
) -> Batch:
    """The rows of whole groups, in the order of their prompts. A trajectory that failed, or never had a row, has one
    without a response.

    ordinals: of the prompts, which number the groups. version: of the weights, for what was not sampled. sees: whether
    rows have pictures, each those of its own. simulator: of a job whose trajectories are episodes.
    """
    rows = [(at, index, row) for at, item in enumerate(trajectories) for index, row in enumerate(rows_of(item))]
    of_row = np.array([at for at, _, _ in rows], np.int64)
    first = np.array([item.task.trajectory * rows_per_trajectory for item in trajectories], np.int64)
    row_ids = first[of_row] + np.array([index for _, index, _ in rows], np.int64)
    groups = np.array([item.task.group for item in trajectories], np.int64)[of_row]
    heads = np.searchsorted(groups, ordinals)
    of_prompts = prompts.columns | {"source": prompts.source}
    columns = {name: column.per_group_at(heads, len(rows)) for name, column in of_prompts.items()}
    columns |= _columns_of_tokens([row for _, _, row in rows], version)
    if sees:
        columns[IMAGES] = Column.binary([PictureList.pack(row.pictures) for _, _, row in rows])
    ragged = [values for item in trajectories for values in _turn_rewards(item)]
    columns[TURN_REWARDS] = Column.ragged(ragged, "float64")
    kept = [item.failed is None for item in trajectories]
    rewards = [0.0 if item.failed else item.environment_reward for item in trajectories]
    truncated = [item.truncated and item.failed is None for item in trajectories]
    columns |= {
        KEPT: Column.fixed(np.array(kept, np.uint8)[of_row]),
        ENVIRONMENT_REWARD: Column.fixed(np.array(rewards, np.float64)[of_row]),
        MESSAGES: Column.strings(text for item in trajectories for text in _messages(item)),
        "truncated": Column.fixed(np.array(truncated, np.bool_)[of_row]),
    }
    if simulator is not None:
        played = [row for _, _, row in rows]
        columns |= episode_columns(trajectories, of_row, played, simulator)
    return Batch(row_ids, groups, columns["prompt_ids"].lengths + columns["response_ids"].lengths, columns)


def rows_of(trajectory: Trajectory) -> list[TokenRow]:
    """The rows that stand for a trajectory, at least one."""
    task = trajectory.task
    has_rows = trajectory.failed is None and trajectory.rows
    return trajectory.rows if has_rows else [TokenRow(task.prompt_ids, task.pictures)]


def _messages(trajectory: Trajectory) -> list[str]:
    """What the column of messages has at each row that stands for a trajectory."""
    before = [""] * (len(rows_of(trajectory)) - 1)
    return [*before, "" if trajectory.failed is not None else json.dumps(_said(trajectory), default=str)]


def _said(trajectory: Trajectory) -> list[Message]:
    """Its messages, with places for their pictures."""
    return [{**message, "content": content_text(message.get("content"), PLACE)} for message in trajectory.messages]


def _turn_rewards(trajectory: Trajectory) -> Sequence[np.ndarray]:
    has_rows = trajectory.failed is None and trajectory.rows
    return turn_rewards(trajectory) if has_rows else [np.empty(0)]


def _columns_of_tokens(rows: Sequence[TokenRow], version: int) -> dict[str, Column]:
    responses = Column.ragged([row.response_ids for row in rows])
    sampled = [row.versions(version)[row.mask.astype(bool)] for row in rows]
    ends = [(item[0], item[-1]) if len(item) else (version, version) for item in sampled]
    first, last = np.array(ends, np.int64).reshape(-1, 2).T
    return {
        "policy_version": Column.fixed(np.ascontiguousarray(first)),
        "last_policy_version": Column.fixed(np.ascontiguousarray(last)),
        "prompt_ids": Column.ragged([row.prompt for row in rows]),
        "response_ids": responses,
        "response_mask": Column.ragged([row.mask for row in rows], "uint8"),
        "rollout_log_probs": Column.ragged([row.log_probs for row in rows], "float32"),
        "token_versions": Column.ragged([row.versions(version) for row in rows]),
        "turn_ids": Column.ragged([row.turn_ids for row in rows]),
        "agent_ids": Column.from_lengths(np.zeros(len(responses.values), np.int64), responses.lengths),
    }


def played_metrics(trajectories: Sequence[Trajectory], num_trajectories: int, num_redrawn: int) -> Scalars:
    """Lengths, turns, calls and failures. num_trajectories: of a step of the job, for fractions of failures."""
    good = [item for item in trajectories if item.failed is None]
    lengths = np.array([item.num_sampled for item in good], np.int64)
    turns = np.array([item.num_turns for item in good], np.int64)
    metrics = {
        "response_length/mean": mean_of(lengths),
        "response/truncated_fraction": mean_of(np.array([item.truncated for item in good], np.bool_)),
        "tokens/response_total": total(float(sum(item.num_sampled for item in trajectories))),
        "tokens/total": total(float(sum(len(row) for item in good for row in item.rows))),
        "conversation/turns_mean": mean_of(turns),
        "conversation/world_tokens": total(float(sum(item.num_world_tokens for item in good))),
        "conversation/rows_opened": total(float(sum(max(0, len(item.rows) - 1) for item in good))),
        "conversation/tool_calls": mean(sum(item.num_calls for item in good), len(good)),
        "conversation/environment_reward": mean_of(np.array([item.environment_reward for item in good])),
        "conversation/groups_redrawn": total(float(num_redrawn)),
        "conversation/trajectories_replayed": total(float(sum(item.is_replayed for item in trajectories))),
    }
    if good:
        metrics["response_length/max"] = maximum(float(lengths.max()))
        metrics["conversation/turns_max"] = maximum(float(turns.max()))
    causes = _failures(trajectories, num_trajectories)
    return metrics | _calls(good) | causes | _of_worlds(good) | _rewards_of_turns(good)


def _calls(trajectories: Sequence[Trajectory]) -> Scalars:
    number = sum(item.num_calls for item in trajectories)
    return {
        "conversation/tool_errors": mean(sum(item.num_call_errors for item in trajectories), number),
        "time/tool_seconds": mean(sum(item.call_seconds for item in trajectories), number),
    }


def _failures(trajectories: Sequence[Trajectory], num_trajectories: int) -> Scalars:
    causes = dict.fromkeys(CAUSES, 0) | failures(trajectories)
    fractions = {f"conversation/failed_fraction/{cause}": number for cause, number in causes.items()}
    fractions["conversation/failed_fraction"] = sum(causes.values())
    return {name: total(number / num_trajectories) for name, number in fractions.items()}


def _rewards_of_turns(trajectories: Sequence[Trajectory]) -> Scalars:
    """By turn, the mean reward that the world gave it, over the trajectories that had the turn: the first turns, and
    all that come after them together."""
    if not any(item.rewards for item in trajectories):
        return {}
    sums, numbers = np.zeros(SHOWN_TURNS + 1), np.zeros(SHOWN_TURNS + 1)
    for item in trajectories:
        np.add.at(numbers, np.minimum(np.arange(item.num_turns), SHOWN_TURNS), 1)
        for turn, reward in item.rewards:
            last = item.num_turns - 1
            sums[min(last if turn is None else min(turn, last), SHOWN_TURNS)] += reward
    names = [*(f"{turn:02d}" for turn in range(SHOWN_TURNS)), "later"]
    return {
        f"conversation/turn_reward/{name}": mean(float(sums[at]), float(numbers[at]))
        for at, name in enumerate(names)
        if numbers[at]
    }


def _of_worlds(trajectories: Sequence[Trajectory]) -> Scalars:
    """Figures that run functions gave, each a mean over all that were given."""
    values: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.metrics:
            values.setdefault(name, []).append(value)
    return {f"conversation/world/{name}": mean_of(np.array(given)) for name, given in values.items()}


def played_samples(trajectories: Sequence[Trajectory], rows_per_trajectory: int) -> list[dict[str, Any]]:
    """Who said what in some trajectories, for a person to read, each under the number of its last row."""
    samples = []
    for item in trajectories:
        row_id = item.task.trajectory * rows_per_trajectory + len(rows_of(item)) - 1
        sample: dict[str, Any] = {"row_id": row_id, "messages": _said(item), "turns": item.num_turns}
        if item.rewards:
            sample["environment_rewards"] = [[turn, reward] for turn, reward in item.rewards]
        if item.failed is not None:
            sample["failed"] = f"{item.failed}: {item.message}"
        samples.append(sample)
    return samples
