"""Trajectories that were played as rows of a batch: what was sampled is an action, what the world wrote is not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rljob_api.catalogue.columns import AGENT, ENVIRONMENT_REWARD, IMAGES, KEPT, MESSAGES, TURN_REWARDS
from rljob_api.v1alpha1 import AgentSpec, RLJobSpec
from rljob_worker.batch import Batch, Column
from rljob_worker.batch.row_index import Int64
from rljob_worker.conversations.messages import Message
from rljob_worker.conversations.picture_parts import content_text
from rljob_worker.conversations.trajectory import TokenRow, Trajectory, agent_rewards, failures, turn_rewards
from rljob_worker.data.dataset import Prompts
from rljob_worker.metrics.scalars import Scalars, maximum, mean, mean_of, total
from rljob_worker.stages.played.episode_rows import episode_columns
from rljob_worker.vision.picture_tokens import PLACE
from rljob_worker.vision.pictures import PictureList

CAUSES = ("error", "replay")
"""Causes of failure that any job may have: metrics have them where there are none, too."""
SHOWN_TURNS = 16
"""Turns whose rewards have a metric of their own."""


def played_batch(
    trajectories: Sequence[Trajectory], prompts: Prompts, ordinals: Int64, *, spec: RLJobSpec, version: int
) -> Batch:
    """The rows of whole groups, in the order of their prompts. A trajectory that failed, or never had a row, has one
    without a response.

    ordinals: of the prompts, which number the groups. version: of the weights, for what was not sampled. Where policies
    see, rows have pictures, each those of its own.
    """
    rows = [(at, row) for at, item in enumerate(trajectories) for row in rows_of(item)]
    of_row = np.array([at for at, _ in rows], np.int64)
    first = np.array([item.task.trajectory * spec.rows_per_trajectory for item in trajectories], np.int64)
    numbers = [number for item in trajectories for number in row_numbers(rows_of(item), spec)]
    row_ids = first[of_row] + np.array(numbers, np.int64)
    groups = np.array([item.task.group for item in trajectories], np.int64)[of_row]
    heads = np.searchsorted(groups, ordinals)
    of_prompts = prompts.columns | {"source": prompts.source}
    columns = {name: column.per_group_at(heads, len(rows)) for name, column in of_prompts.items()}
    columns |= _columns_of_tokens([row for _, row in rows], version)
    if spec.sees:
        columns[IMAGES] = Column.binary([PictureList.pack(row.pictures) for _, row in rows])
    ragged = [values for item in trajectories for values in _turn_rewards(item)]
    columns[TURN_REWARDS] = Column.ragged(ragged, "float64")
    kept = [item.failed is None for item in trajectories]
    rewards = [reward for item in trajectories for reward in _environment_rewards(item, spec)]
    truncated = [item.truncated and item.failed is None for item in trajectories]
    columns |= {
        KEPT: Column.fixed(np.array(kept, np.uint8)[of_row]),
        ENVIRONMENT_REWARD: Column.fixed(np.array(rewards, np.float64)),
        MESSAGES: Column.strings(text for item in trajectories for text in _messages(item, spec)),
        "truncated": Column.fixed(np.array(truncated, np.bool_)[of_row]),
    }
    if spec.agents:
        columns[AGENT] = Column.strings(spec.agents[row.agent].name for _, row in rows)
    if (simulator := spec.rollout.simulator) is not None:
        played = [row for _, row in rows]
        columns |= episode_columns(trajectories, of_row, played, simulator)
    return Batch(row_ids, groups, columns["prompt_ids"].lengths + columns["response_ids"].lengths, columns)


def rows_of(trajectory: Trajectory) -> list[TokenRow]:
    """The rows that stand for a trajectory, at least one."""
    task = trajectory.task
    has_rows = trajectory.failed is None and trajectory.rows
    return trajectory.rows if has_rows else [TokenRow(task.prompt_ids, task.pictures)]


def row_numbers(rows: Sequence[TokenRow], spec: RLJobSpec) -> list[int]:
    """The number of each row of a trajectory among those that it may have: each agent's follow one another from its
    first number, whatever became of turns in between that were cancelled. rows: in the order of their places."""
    agents = [row.agent for row in rows]
    return [agent * spec.rows_per_agent + at - agents.index(agent) for at, agent in enumerate(agents)]


def _messages(trajectory: Trajectory, spec: RLJobSpec) -> list[str]:
    """What the column of messages has at each row that stands for a trajectory: all of them at its last one, and at the
    last one of each agent that is rewarded apart."""
    rows = rows_of(trajectory)
    text = "" if trajectory.failed is not None else json.dumps(_said(trajectory), default=str)
    is_last = [spec.rewards_agents and row.agent != after.agent for row, after in pairwise(rows)]
    return [text if last else "" for last in (*is_last, True)]


def _said(trajectory: Trajectory) -> list[Message]:
    """Its messages, with places for their pictures."""
    return [{**message, "content": content_text(message.get("content"), PLACE)} for message in trajectory.messages]


def _environment_rewards(trajectory: Trajectory, spec: RLJobSpec) -> list[float]:
    """For each row, the world's rewards: of the trajectory, or of the agent that is rewarded apart."""
    rows = rows_of(trajectory)
    if trajectory.failed is not None:
        return [0.0] * len(rows)
    if not spec.rewards_agents:
        return [trajectory.environment_reward] * len(rows)
    rewards = agent_rewards(trajectory, spec.num_agents)
    return [rewards[row.agent] for row in rows]


def _turn_rewards(trajectory: Trajectory) -> Sequence[np.ndarray]:
    has_rows = trajectory.failed is None and trajectory.rows
    return turn_rewards(trajectory) if has_rows else [np.empty(0)]


def _columns_of_tokens(rows: Sequence[TokenRow], version: int) -> dict[str, Column]:
    responses = Column.ragged([row.response_ids for row in rows])
    agents = np.array([row.agent for row in rows], np.int64)
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
        "agent_ids": Column.from_lengths(np.repeat(agents, responses.lengths), responses.lengths),
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


def played_lengths(rows: Batch, rows_per_trajectory: int) -> Scalars:
    """Lengths of the trajectories that these rows are of, without those that failed."""
    good = rows.take(np.flatnonzero(rows[KEPT].values))
    offsets = good["response_mask"].offsets
    assert offsets is not None, "one per token"
    sums = np.concatenate([[0], np.cumsum(good["response_mask"].values, dtype=np.int64)])
    numbers, first, of_row = np.unique(good.row_ids // rows_per_trajectory, return_index=True, return_inverse=True)
    lengths = np.bincount(of_row, sums[offsets[1:]] - sums[offsets[:-1]], len(numbers))
    metrics = {
        "response_length/mean": mean_of(lengths),
        "response/truncated_fraction": mean_of(good["truncated"].values[first]),
        "tokens/total": total(float(good.num_tokens.sum())),
    }
    if len(numbers):
        metrics["response_length/max"] = maximum(float(lengths.max()))
    return metrics


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


def agent_metrics(trajectories: Sequence[Trajectory], agents: Sequence[AgentSpec]) -> Scalars:
    """Turns and tokens of each agent in a trajectory."""
    good, metrics = [item for item in trajectories if item.failed is None], Scalars()
    for place, agent in enumerate(agents):
        rows = [[row for row in item.rows if row.agent == place] for item in good]
        turns = [sum(len(row.turn_ends()) for row in mine) for mine in rows]
        lengths = [sum(row.num_sampled for row in mine) for mine in rows]
        metrics[f"conversation/agent/{agent.name}/turns"] = mean_of(np.array(turns, np.int64))
        metrics[f"conversation/agent/{agent.name}/response_length"] = mean_of(np.array(lengths, np.int64))
    return metrics


def played_samples(trajectories: Sequence[Trajectory], spec: RLJobSpec) -> list[dict[str, Any]]:
    """Who said what in some trajectories, for a person to read, each under the number of its last row."""
    samples = []
    for item in trajectories:
        row_id = item.task.trajectory * spec.rows_per_trajectory + row_numbers(rows_of(item), spec)[-1]
        sample = {**item.shown, "row_id": row_id, "messages": _said(item), "turns": item.num_turns}
        if item.rewards:
            sample["environment_rewards"] = [[turn, reward] for turn, reward in item.rewards]
        if item.failed is not None:
            sample["failed"] = f"{item.failed}: {item.message}"
        samples.append(sample)
    return samples
