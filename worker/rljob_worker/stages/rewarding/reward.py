"""Reward: runs the job's reward functions on every response, and adds them and what models say up.

A trajectory gets one reward, of its last row, and all of its rows have it. Rewards of the steps of an answer are
reported by characters; they go to the tokens in which the steps end."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_api.catalogue.columns import AGENT, IMAGES, KEPT, MESSAGES, STEP_REWARDS, TURN_REWARDS, model_rewards
from rljob_api.planning.plan import StagePlan
from rljob_api.v1alpha1 import RewardSpec, RLJobSpec
from rljob_worker.batch import Batch, Column
from rljob_worker.batch.trajectories import Int64, Trajectories
from rljob_worker.engines.rollout.requests import EndedRequests
from rljob_worker.metrics.scalars import Scalars, maximum, mean, mean_of, means_by_source
from rljob_worker.rewards.combine import Rewards, combine, joined_rewards
from rljob_worker.rewards.forms import PICTURES, VIDEOS
from rljob_worker.rewards.results import RewardResult
from rljob_worker.rewards.running.runner import RewardRunner
from rljob_worker.stages.draws.partial_rows import PartialRound
from rljob_worker.stages.stage import Resources, StageContext, StageResult
from rljob_worker.vision.pictures import PictureList
from rljob_worker.vision.thumbnails import thumbnail_url
from rljob_worker.vision.videos import is_video

NUM_SAMPLED_GROUPS = 2
"""Groups of each step whose rows go to samples.jsonl."""

TOKEN_VERSIONS = "token_versions"
"""Column that is read where rows may have several."""

ENVIRONMENT_RUN = "rljob_worker.rewards:environment_reward"
"""The shipped reward that hands on what the world of a conversation gave."""

NOT_OF_REWARD_ROWS = (KEPT, TURN_REWARDS, TOKEN_VERSIONS)
"""Columns that the stage reads and functions do not see."""

Decode = Callable[[np.ndarray], str]


@dataclass(frozen=True, slots=True)
class Scored:
    """Rewards of a copy's trajectories."""

    total: Rewards
    """[trajectories], weighted sum over rewards."""
    correct: Rewards
    """[trajectories], the first reward."""
    metrics: Scalars
    """On the leader; empty on its peers."""
    samples: list[dict[str, Any]]
    """On the leader; empty on its peers."""


class Reward:
    """Weighted sum of the job's rewards, one number per trajectory; and what of it is at the steps of an answer."""

    def __init__(self, stage: StagePlan, resources: Resources) -> None:
        policy = resources.plan.policy_of(stage.name)
        self._runner: RewardRunner | None = resources.rewards.get(policy)
        self._is_begun = stage.run == "Sample" or resources.plan.begun_in(stage.name) is not None
        self._spec = resources.plan.spec_of(policy)
        self._is_exact = stage.run == "Reward" and stage.scatters_rows
        """Whether other ranks may come to have these rows in another run, so that sums are kept as they are exactly."""
        self._functions = [i for i, reward in enumerate(self._spec.rewards) if reward.model is None]
        self._columns = {i: model_rewards(reward.model) for i, reward in enumerate(self._spec.rewards) if reward.model}
        self._writes, self._rows_per_trajectory = stage.writes, resources.plan.rows_per_trajectory

    def run(self, batch: Batch | None, context: StageContext) -> StageResult:
        assert batch is not None
        trajectories = Trajectories(batch.row_ids, self._rows_per_trajectory, self._spec.num_agents)
        if self._spec.rewards_agents:
            trajectories = trajectories.of_agents
        ends, first_group = trajectories.ends(batch), (context.step - 1) * self._spec.data.batch_size
        kept = kept_places(ends)
        ends = ends.take(kept)
        shown = np.flatnonzero(ends.group_ids - first_group < NUM_SAMPLED_GROUPS)
        result, samples = self.score(ends, context.decode, shown)
        rewards = spread_over(result.total, kept, len(trajectories))
        columns = {"rewards": Column.fixed(trajectories.on_rows(rewards))}
        if STEP_REWARDS in self._writes:
            steps: list[list[tuple[int, float]]] = [[] for _ in range(len(batch))]
            for row, of_end in zip(trajectories.last[kept].tolist(), self._weighted_steps(result), strict=True):
                steps[row] = of_end
            columns[STEP_REWARDS] = self._with_turns(step_rewards(batch["response_ids"], steps, context.decode), batch)
        sources = ends.values_of("source")
        metrics = reward_metrics(result.total, result.rewards[:, 0], sources, exactly=self._is_exact)
        metrics |= agent_rewards_metrics(result.total, ends, self._spec)
        return StageResult(batch.select([]).with_columns(columns), metrics | result.metrics, samples)

    def score(
        self, batch: Batch, decode: Callable[[np.ndarray], str], shown: Int64
    ) -> tuple[RewardResult, list[dict[str, Any]]]:
        """Rewards of trajectories, of whose last rows the batch has the columns that the Reward stage reads; and some
        of those rows for a person to read. shown: places of them."""
        not_texts = (*self._columns.values(), *NOT_OF_REWARD_ROWS)
        texts = batch.select(name for name in batch.columns if name not in not_texts)
        result = self._with_models(self._of_functions(texts, decode), batch)
        rows = reward_rows(texts.take(shown), decode)
        samples = [
            self._sample(row, result, i) | carried_at(batch, i) for row, i in zip(rows, shown.tolist(), strict=True)
        ]
        return result, with_thumbnails(samples, rows)

    def score_for_copy(self, batch: Batch, context: StageContext, shown: Int64) -> Scored:
        """Score on the leader of a copy, and broadcast its results to the other ranks."""

        def work() -> tuple[Rewards, tuple[Scalars, list[dict[str, Any]]]]:
            result, samples = self.score(batch, context.decode, shown)
            return np.stack([result.total, result.rewards[:, 0]]), (result.metrics, samples)

        (total, correct), on_leader = context.copy.from_leader((2, len(batch)), work)
        metrics, samples = on_leader or ({}, [])
        return Scored(total, correct, metrics, samples)

    def _of_functions(self, batch: Batch, decode: Callable[[np.ndarray], str]) -> RewardResult:
        """[rows, functions], of those alone."""
        if not self._functions:
            return RewardResult(np.zeros((len(batch), 0)), np.zeros(len(batch)), {}, ())
        assert self._runner is not None, "rewards run on the leader of a copy only"
        if not self._is_begun:
            self._runner.begin(reward_rows(batch, decode))
        return self._runner.collect(batch.row_ids.tolist(), exactly=self._is_exact)

    def _with_models(self, result: RewardResult, batch: Batch) -> RewardResult:
        """[rows, num_rewards], with what models of the job say."""
        if not self._columns:
            return result
        specs = self._spec.rewards
        of_models = {place: np.asarray(batch[column].values, np.float64) for place, column in self._columns.items()}
        rewards = joined_rewards(dict(zip(self._functions, result.rewards.T, strict=True)) | of_models, len(batch))
        total = combine(rewards, [reward.weight for reward in specs])
        metrics = {f"reward/{specs[i].name}": mean_of(values) for i, values in of_models.items()}
        steps = {self._functions[place]: of_rows for place, of_rows in result.steps.items()}
        return replace(result, rewards=rewards, total=total, metrics=result.metrics | metrics, steps=steps)

    def _with_turns(self, steps: Column, batch: Batch) -> Column:
        """What is at the steps, with the world's rewards of the turns times the weight of the reward that hands them
        on."""
        weight = sum(reward.weight for reward in self._spec.rewards if is_of_turns(reward))
        if TURN_REWARDS not in batch or not weight:
            return steps
        return replace(steps, values=steps.values + weight * batch[TURN_REWARDS].values)

    def _weighted_steps(self, result: RewardResult) -> list[list[tuple[int, float]]]:
        """For each trajectory, the steps of all rewards that are spread, times their weights."""
        rows: list[list[tuple[int, float]]] = [[] for _ in range(len(result.total))]
        for place, of_rows in result.steps.items():
            if is_of_turns(self._spec.rewards[place]):  # whose turns are a column
                continue
            weight = self._spec.rewards[place].weight
            for row, steps in zip(rows, of_rows, strict=True):
                row += [(end, weight * reward) for end, reward in steps]
        return rows

    def _sample(self, row: dict[str, Any], result: RewardResult, index: int) -> dict[str, Any]:
        """One row for a person to read."""
        item = {reward.name: float(result.rewards[index, i]) for i, reward in enumerate(self._spec.rewards)}
        return {**shown_row(row, self._spec), "reward": float(result.total[index]), "rewards": item}


def is_of_turns(reward: RewardSpec) -> bool:
    """Whether a reward is the world's, each part at the turn that it is of."""
    return reward.run == ENVIRONMENT_RUN and reward.spread == "Steps"


def kept_places(ends: Batch) -> Int64:
    """Which of some trajectories did not fail: int64 places. ends: a row of each."""
    kept: Int64 = np.flatnonzero(ends[KEPT].values) if KEPT in ends else np.arange(len(ends))
    return kept


def spread_over(values: NDArray[np.float64], places: Int64, number: int) -> NDArray[np.float64]:
    """Values at their places among `number`, 0 elsewhere."""
    if len(places) == number:
        return values
    result = np.zeros(number)
    result[places] = values
    return result


def begins_rewards(
    runner: RewardRunner, asked: Batch, decode: Callable[[np.ndarray], str]
) -> Callable[[EndedRequests], None]:
    """What begins rewards of rows that have ended; asked: all rows, with what their prompts give to rewards."""
    texts: dict[int, str] = {}
    pictures = pictures_of_groups(asked)

    def begin(ended: EndedRequests) -> None:
        order = np.argsort(ended.row_ids)
        rows = asked.take(np.searchsorted(asked.row_ids, ended.row_ids[order]))
        rows = rows.with_columns({"response_ids": ended.response_ids.take(order)})
        runner.begin(reward_rows(rows, decode, texts, pictures))

    return begin


def begins_group_rewards(
    runner: RewardRunner, work: PartialRound, decode: Callable[[np.ndarray], str]
) -> Callable[[EndedRequests], None]:
    """What begins rewards of groups all of whose rows have ended, while others go on."""
    index, left = dict[int, int](), dict[int, int]()
    for place, (row, group) in enumerate(zip(work.rows.row_ids.tolist(), work.rows.group_ids.tolist(), strict=True)):
        index[row] = place
        left[group] = left.get(group, 0) + 1
    responses: dict[int, np.ndarray] = {}
    texts: dict[int, str] = {}
    if work.ended is not None:
        responses = dict(zip(work.ended.row_ids.tolist(), work.ended["response_ids"].to_list(), strict=True))
    asked = work.rows if work.ended is None else Batch.concat([work.rows, work.ended.select(work.rows.columns)])
    pictures = pictures_of_groups(asked)

    def begin(ended: EndedRequests) -> None:
        places = np.array([index[row] for row in ended.row_ids.tolist()], np.int64)
        complete = []
        for at in np.flatnonzero(work.has_ended(places, ended.endings)).tolist():
            responses[int(ended.row_ids[at])] = ended.response_ids.row(at)
            group = int(work.rows.group_ids[places[at]])
            left[group] -= 1
            if not left[group]:
                complete.append(group)
        rows = asked.take(np.flatnonzero(np.isin(asked.group_ids, complete)))
        if len(rows):
            column = Column.ragged([responses.pop(row) for row in rows.row_ids.tolist()])
            runner.begin(reward_rows(rows.with_columns({"response_ids": column}), decode, texts, pictures))

    return begin


def reward_rows(
    batch: Batch,
    decode: Callable[[np.ndarray], str],
    texts: dict[int, str] | None = None,
    pictures: Mapping[int, Shown] | None = None,
) -> list[dict[str, Any]]:
    """What a reward function is given: texts, counts, pictures, messages and the dataset's columns of each row.

    texts: prompts of groups that were decoded before. pictures: of groups, which their rows share; unset: those of the
    batch.
    """
    prompts, responses = batch.values_of("prompt_ids"), batch["response_ids"]
    carried = {name: batch.values_of(name) for name in batch.columns if name not in _OTHER_FORM}
    pictures = pictures_of_groups(batch) if pictures is None else pictures
    has_own = IMAGES in batch and not batch.columns[IMAGES].per_group
    texts = {} if texts is None else texts  # a group shares its prompt
    messages = batch.values_of(MESSAGES) if MESSAGES in batch else None
    rows = []
    for i in range(len(batch)):
        group = int(batch.group_ids[i])
        if group not in texts or messages is not None:  # rows that trajectories of a group end in begin differently
            texts[group] = decode(prompts[i])
        response = responses.row(i)
        row = {name: plain(values[i]) for name, values in carried.items()}
        row |= {"prompt": texts[group], "response": decode(response)}
        row |= {"num_response_tokens": len(response), "row_id": int(batch.row_ids[i])}
        if has_own or pictures:
            shown = unpacked(batch[IMAGES].row(i)) if has_own else pictures[group]
            row = shown | row if not shown[VIDEOS] else row | shown  # a column of the data may be called so
        row |= {MESSAGES: json.loads(messages[i] or "[]")} if messages is not None else {}
        rows.append(row)
    return rows


_OTHER_FORM = ("prompt_ids", "response_ids", IMAGES, MESSAGES)
"""Columns that a reward function is given as texts, and as lists of pictures and messages."""


def pictures_of_groups(batch: Batch) -> dict[int, Shown]:
    """The encoded pictures and videos of each group's prompt; nothing where prompts have none, and where rows have
    their own."""
    if IMAGES not in batch or not batch.columns[IMAGES].per_group:
        return {}
    heads = np.unique(batch.index.heads())
    blobs = batch.column_of(IMAGES, heads).to_list()
    groups = batch.group_ids[heads].tolist()
    return {group: unpacked(blob) for group, blob in zip(groups, blobs, strict=True)}


Shown = dict[str, list[bytes]]
"""What a row has of its pictures and videos, encoded, as PICTURES and VIDEOS."""


def unpacked(blob: bytes) -> Shown:
    """Pictures and videos in a value of the column `images`."""
    items = [bytes(item) for item in PictureList.unpack(blob)]
    videos = [is_video(item) for item in items]
    return {
        PICTURES: [item for item, is_one in zip(items, videos, strict=True) if not is_one],
        VIDEOS: [item for item, is_one in zip(items, videos, strict=True) if is_one],
    }


def shown_row(row: Mapping[str, Any], spec: RLJobSpec) -> dict[str, Any]:
    """What a person is shown of a row that rewards are given; `source` is the name of its data set, `agent` who acts in
    it, in a team, and `reference` the column of the first reward that has one."""
    shown = {name: row[name] for name in ("row_id", "source", "prompt", "response", *(AGENT,) * bool(spec.agents))}
    column = next((reward.column for reward in spec.rewards if reward.column is not None), None)
    return shown if column is None else {**shown, "reference": row[column]}


def with_thumbnails(samples: list[dict[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Samples of rows with small pictures as data URLs, `pictures`, those of frames of videos behind them: of a group
    at the first of its rows alone."""
    seen = set[int]()
    for sample, row in zip(samples, rows, strict=True):
        pictures = row.get(PICTURES)
        if pictures is None or id(pictures) in seen:
            continue
        seen.add(id(pictures))
        videos = [item for item in row.get(VIDEOS, ()) if isinstance(item, bytes)]
        if urls := [thumbnail_url(encoded) for encoded in (*pictures, *videos)]:
            sample[PICTURES] = urls
    return samples


def carried_at(batch: Batch, row: int) -> dict[str, Any]:
    """What a person is shown of a row that was drawn with several versions: `versions`, of its first token and where
    each new one begins, `[[0, 3], [512, 4]]`."""
    if TOKEN_VERSIONS not in batch:
        return {}
    versions = batch[TOKEN_VERSIONS].row(row)
    begins = np.flatnonzero(np.diff(versions, prepend=versions[:1] - 1))
    return {"versions": np.stack([begins, versions[begins]], axis=1).tolist()} if len(begins) > 1 else {}


def plain(value: Any) -> Any:
    """A numpy scalar or array as the Python value JSON knows."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value


def reward_metrics(rewards: Rewards, correct: Rewards, sources: Sequence[str], *, exactly: bool = False) -> Scalars:
    """`reward/mean` and what its spread is made of; reward and accuracy by source. All [trajectories]; correct: the
    first reward, which says who is right as it does in validation. exactly: with what sums leave of exact ones."""
    rows = len(rewards)
    squares = mean_of(rewards * rewards, exactly=True) if exactly else mean(float(rewards @ rewards), rows)
    metrics = {"reward/mean": mean_of(rewards, exactly=exactly), "reward/square_mean": squares}
    if rows:
        metrics["reward/max"] = maximum(float(rewards.max()))
    metrics |= means_by_source("training/reward", rewards, sources, exactly=exactly)
    return metrics | means_by_source("training/accuracy", correct, sources, exactly=exactly)


def agent_rewards_metrics(rewards: Rewards, ends: Batch, spec: RLJobSpec) -> Scalars:
    """Mean reward of each agent, where agents are rewarded apart. rewards: [rows] of `ends`."""
    if not spec.rewards_agents:
        return {}
    names = np.array(ends.values_of(AGENT), object)
    return {f"conversation/agent/{a.name}/reward": mean_of(rewards[names == a.name]) for a in spec.agents}


def step_rewards(response_ids: Column, steps: Sequence[Sequence[tuple[int, float]]], decode: Decode) -> Column:
    """Float64, one value per response token: the rewards of the steps that end in it.

    steps: of each row, characters of its text up to the end of a step, and the step's reward. A step without a
    character ends in no token.
    """
    assert response_ids.offsets is not None
    values = np.zeros(int(response_ids.offsets[-1]))
    for row, of_row in enumerate(steps):
        ends = [end for end, _ in of_row]
        for token, (end, reward) in zip(tokens_at(response_ids.row(row), ends, decode), of_row, strict=True):
            if end:
                values[int(response_ids.offsets[row]) + token] += reward
    return Column(values, response_ids.offsets, "float64")


def tokens_at(ids: NDArray[np.int64], ends: Sequence[int], decode: Decode) -> list[int]:
    """For each end, the first token with which the text has that many characters.

    "12" "-5" "=" "7\\n" with ends 3 and 6 -> 1, 3
    """
    if not ends or not len(ids):
        return [0] * len(ends)
    text_lengths = np.cumsum(_characters(ids, decode))
    if text_lengths[-1] == len(decode(ids)):
        return [int(token) for token in np.searchsorted(text_lengths, ends)]
    # characters that several tokens make together: how far a text reaches is known of its beginnings alone
    return [bisect_left(range(len(ids) - 1), end, key=lambda last: len(decode(ids[: last + 1]))) for end in ends]


def _characters(ids: NDArray[np.int64], decode: Decode) -> NDArray[np.int64]:
    """Characters that each token adds after another one; the first may be written otherwise."""
    first = len(decode(ids[:1]))
    added = {token: len(decode(np.array([ids[0], token]))) - first for token in np.unique(ids[1:])}
    return np.array([first, *(added[token] for token in ids[1:])])
