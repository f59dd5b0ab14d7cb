"""Generation of rows by conversations: prompts become tasks, trajectories that were played become rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from rljob_api.catalogue.columns import IMAGES, KEPT
from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.batch import Batch
from rljob_worker.conversations.journal.replay import Entries, Record
from rljob_worker.conversations.picture_parts import with_pictures
from rljob_worker.conversations.playing.commands import CopyOfRanks, shared_batch
from rljob_worker.conversations.playing.loop import Conversations
from rljob_worker.conversations.playing.plays import Play
from rljob_worker.conversations.task import Task
from rljob_worker.conversations.trajectory import Trajectory, failures
from rljob_worker.data.dataset import Prompts
from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.errors import BadData
from rljob_worker.metrics.scalars import Scalars, maximum
from rljob_worker.row_index import Int64
from rljob_worker.stages.episode_rows import episode_metrics
from rljob_worker.stages.played_rows import agent_metrics, played_batch, played_metrics, played_samples
from rljob_worker.trajectories import Trajectories
from rljob_worker.vision.pictures import PictureList

LEAST_LEFT = 2
"""Trajectories of a group with fewer left are compared with nothing."""

SHOWN_MEMBERS = 2
"""Trajectories of a group that may show more than what was said, such as a video."""

Begin = Callable[[Batch], None]
"""Begins rewards of the last rows of some trajectories."""


class Journals(Protocol):
    """Where journals of steps are (`conversations.journal.files`)."""

    def records(self, step: int, trajectories: frozenset[int]) -> dict[tuple[int, int], Record]:
        """What earlier attempts at a step recorded of these trajectories."""
        ...

    def entries(self, step: int) -> Entries:
        """Where this attempt at a step is recorded."""
        ...

    def close(self) -> None:
        """End the file."""
        ...


@dataclass(frozen=True, slots=True)
class Played:
    """What a rank played."""

    batch: Batch
    """Rows with every column there is, alike on all ranks of a copy."""
    metrics: Scalars
    """On the leader; empty on its peers."""
    samples: list[dict[str, Any]]
    """On the leader; empty on its peers."""
    failures: Mapping[str, tuple[int, str]]
    """On the leader by cause, how many failed and what is said of the first."""


class ConversationRollout:
    """Plays conversations for one policy on one rank."""

    def __init__(self, spec: RLJobSpec, conversations: Conversations, journals: Journals | None = None) -> None:
        """journals: None where nothing is recorded."""
        self._spec, self._conversations, self._journals = spec, conversations, journals
        self._rows_per_trajectory = spec.rows_per_trajectory

    def play(
        self,
        prompts: Prompts,
        ordinals: Int64,
        sampling: Sampling,
        group_size: int,
        copy: CopyOfRanks,
        *,
        step: int | None,
        begin: Begin | None = None,
        num_shown: int = 0,
    ) -> Played:
        """Conversations of `group_size` trajectories for each prompt. Every rank of a copy calls it alike.

        step: whose journal they are in, and whose groups are drawn again where too few are left; None: neither, in a
        validation. begin: called with groups that are over, while others go on. num_shown: trajectories, the first of
        all, that a person is shown.
        """
        tasks = self._tasks(prompts, ordinals, sampling, group_size) if copy.is_leader else []
        play = self._play(tasks, sampling, step, begin, prompts, group_size)
        play = replace(
            play, shown=frozenset(task.trajectory for task in tasks[:num_shown] if task.member < SHOWN_MEMBERS)
        )
        trajectories = self._conversations.play(play, copy)

        def batch() -> Batch:
            return self._batch(trajectories, prompts, ordinals)

        rows = shared_batch(copy, batch)
        if not copy.is_leader:
            return Played(rows, {}, [], {})
        metrics = played_metrics(trajectories, self._spec.num_rows, self._conversations.num_redrawn)
        metrics |= agent_metrics(trajectories, self._spec.agents)
        if self._spec.rollout.simulator is not None:
            metrics |= episode_metrics(trajectories)
        metrics["conversation/loop_blocked_seconds"] = maximum(self._conversations.longest_blocked_seconds)
        shown = played_samples(trajectories[:num_shown], self._spec)
        return Played(rows, metrics, shown, _described(trajectories))

    def close(self) -> None:
        """End processes, threads and files."""
        self._conversations.close()
        if self._journals is not None:
            self._journals.close()

    def _play(
        self,
        tasks: Sequence[Task],
        sampling: Sampling,
        step: int | None,
        begin: Begin | None,
        prompts: Prompts,
        group_size: int,
    ) -> Play:
        journals = self._journals if step is not None and tasks else None
        numbers = frozenset(task.trajectory for task in tasks)
        places = {task.group: at // group_size for at, task in enumerate(tasks)}

        def when_over(trajectories: Sequence[Trajectory]) -> None:
            group = trajectories[0].task.group
            rows = self._batch(trajectories, prompts_at(prompts, places[group]), np.array([group]))
            # a validation judges what the team answers, whoever of it is rewarded in training
            judged = Trajectories.of if step is None else Trajectories.rewarded
            ends = judged(rows.row_ids, self._spec).ends(rows)
            assert begin is not None
            begin(ends.take(np.flatnonzero(ends[KEPT].values)))

        return Play(
            tasks,
            sampling,
            label="validation" if step is None else f"step-{step}",
            rows_per_trajectory=self._rows_per_trajectory,
            least_left=0 if step is None else min(LEAST_LEFT, group_size),
            when_over=None if begin is None else when_over,
            records={} if journals is None or step is None else journals.records(step, numbers),
            entries=None if journals is None or step is None else journals.entries(step),
        )

    def _batch(self, trajectories: Sequence[Trajectory], prompts: Prompts, ordinals: Int64) -> Batch:
        version = self._conversations.version
        return played_batch(trajectories, prompts, ordinals, spec=self._spec, version=version)

    def _tasks(self, prompts: Prompts, ordinals: Int64, sampling: Sampling, group_size: int) -> list[Task]:
        sources = prompts.source.to_list()
        shown = IMAGES in prompts.columns
        of_tasks = {name: column for name, column in prompts.columns.items() if name != IMAGES}
        tasks = list[Task]()
        for at, group in enumerate(ordinals.tolist()):
            columns = {name: column.row(at) for name, column in of_tasks.items()} | {"source": sources[at]}
            pictures = [bytes(item) for item in PictureList.unpack(prompts.columns[IMAGES].row(at))] if shown else []
            tasks += Task.of_group(
                with_pictures(prompts.messages[at], pictures) if shown else prompts.messages[at],
                prompts.prompt_ids[at],
                columns,
                job_seed=sampling.seed,
                group=group,
                group_size=group_size,
                pictures=pictures,
            )
        return tasks


def prompts_at(prompts: Prompts, place: int) -> Prompts:
    """One of them."""
    at = np.array([place])
    columns = {name: column.take(at) for name, column in prompts.columns.items()}
    return Prompts(
        [prompts.prompt_ids[place]],
        prompts.texts[place : place + 1],
        columns,
        prompts.source.take(at),
        prompts.messages[place : place + 1],
    )


def _described(trajectories: Sequence[Trajectory]) -> dict[str, tuple[int, str]]:
    words = {item.failed: item.message for item in reversed(trajectories) if item.failed is not None}
    return {cause: (number, words[cause]) for cause, number in failures(trajectories).items()}


def failed_of_groups(batch: Batch, numbers: Int64, spec: RLJobSpec) -> Int64:
    """How many trajectories of each group failed, int64 [numbers]. batch: rows of groups with these numbers."""
    ends = Trajectories.of(batch.row_ids, spec).ends(batch)
    failed = ends.group_ids[ends[KEPT].values == 0]
    return np.bincount(np.searchsorted(numbers, failed), minlength=len(numbers)).astype(np.int64)


def require_few_failed(
    spec: RLJobSpec, step: int, num_failed: int, num_played: int, here: Mapping[str, tuple[int, str]]
) -> None:
    """Raises BadData where more trajectories of a step failed than `maxFailed` allows, with the causes on this rank."""
    assert spec.rollout.played is not None
    most, field = spec.rollout.played.max_failed, "conversation" if spec.rollout.conversation else "simulator"
    what = "conversations" if spec.rollout.conversation else "episodes"
    if num_failed <= most * num_played:
        return
    causes = "; ".join(f"{number} {cause} ({words})" for cause, (number, words) in sorted(here.items()))
    raise BadData(
        f"step {step}: {num_failed} of {num_played} {what} failed, and rollout.{field}.maxFailed is "
        f"{most}. On this worker: {causes or 'none'}. Correct what fails, or raise maxFailed"
    )
