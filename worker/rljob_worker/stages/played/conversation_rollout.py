"""Generation of rows by conversations: prompts become tasks, trajectories that were played become rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rljob_api.catalogue.columns import IMAGES, KEPT
from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.batch import Batch
from rljob_worker.batch.row_index import Int64
from rljob_worker.batch.trajectories import Trajectories
from rljob_worker.conversations.journal.files import JournalFolder
from rljob_worker.conversations.picture_parts import with_pictures
from rljob_worker.conversations.playing.commands import shared_batch
from rljob_worker.conversations.playing.loop import Conversations
from rljob_worker.conversations.playing.plays import Play, WhenOver
from rljob_worker.conversations.playing.turns import Rounds
from rljob_worker.conversations.task import Task
from rljob_worker.conversations.trajectory import Trajectory
from rljob_worker.data.dataset import Prompts
from rljob_worker.engines.protocols import CopyOfRanks
from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.metrics.scalars import Scalars, maximum
from rljob_worker.stages.played.episode_rows import episode_metrics
from rljob_worker.stages.played.failed_trajectories import described_failures
from rljob_worker.stages.played.played_rows import agent_metrics, played_batch, played_metrics, played_samples
from rljob_worker.vision.pictures import PictureList

LEAST_LEFT = 2
"""Trajectories of a group with fewer left are compared with nothing."""

SHOWN_MEMBERS = 2
"""Trajectories of a group that may show more than what was said, such as a video."""

Begin = Callable[[Batch], None]
"""Begins rewards of the last rows of some trajectories."""


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
    unfinished: Batch | None = None
    """One row for each trajectory of the groups that are not complete after a round; None without rounds."""


class ConversationRollout:
    """Plays conversations for one policy on one rank."""

    def __init__(self, spec: RLJobSpec, conversations: Conversations, journals: JournalFolder | None = None) -> None:
        """journals: None where nothing is recorded."""
        self.spec, self.conversations, self._journals = spec, conversations, journals

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
        tasks = self.tasks(prompts, ordinals, sampling, group_size) if copy.is_leader else []
        places = {group: at for at, group in enumerate(ordinals.tolist())}

        def prompt_of(group: int) -> Prompts:
            return prompts.take(np.array([places[group]]))

        over = None if begin is None else self.when_over(begin, prompt_of, step)
        shown = frozenset(task.trajectory for task in tasks[:num_shown] if task.member < SHOWN_MEMBERS)
        play = replace(self.play_of(tasks, sampling, step, over, group_size), shown=shown)
        trajectories = self.conversations.play(play, copy)
        rows = shared_batch(copy, lambda: self.rows_of(trajectories, prompts, ordinals))
        return self.played(rows, trajectories, trajectories[:num_shown], copy)

    def close(self) -> None:
        """End processes, threads and files."""
        self.conversations.close()
        if self._journals is not None:
            self._journals.close()

    def played(
        self, rows: Batch, trajectories: Sequence[Trajectory], shown: Sequence[Trajectory], copy: CopyOfRanks
    ) -> Played:
        if not copy.is_leader:
            return Played(rows, {}, [], {})
        metrics = played_metrics(trajectories, self.spec.num_rows, self.conversations.num_redrawn)
        metrics |= agent_metrics(trajectories, self.spec.agents)
        if self.spec.rollout.simulator is not None:
            metrics |= episode_metrics(trajectories)
        metrics["conversation/loop_blocked_seconds"] = maximum(self.conversations.longest_blocked_seconds)
        return Played(rows, metrics, played_samples(shown, self.spec), described_failures(trajectories))

    def when_over(self, begin: Begin, prompt_of: Callable[[int], Prompts], step: int | None) -> WhenOver:
        def over(trajectories: Sequence[Trajectory]) -> None:
            group = trajectories[0].task.group
            rows = self.rows_of(trajectories, prompt_of(group), np.array([group]))
            # a validation judges what the team answers, whoever of it is rewarded in training
            judged = Trajectories.of if step is None else Trajectories.rewarded
            ends = judged(rows.row_ids, self.spec).ends(rows)
            begin(ends.take(np.flatnonzero(ends[KEPT].values)))

        return over

    def play_of(
        self,
        tasks: Sequence[Task],
        sampling: Sampling,
        step: int | None,
        when_over: WhenOver | None,
        group_size: int,
        rounds: Rounds | None = None,
    ) -> Play:
        numbers = {task.trajectory for task in tasks}
        if rounds is not None and rounds.begins_step:
            numbers |= self.conversations.under_way().keys()
        journals = self._journals if step is not None and numbers else None
        return Play(
            tasks,
            sampling,
            label="validation" if step is None else f"step-{step}",
            rows_per_trajectory=self.spec.rows_per_trajectory,
            least_left=0 if step is None else min(LEAST_LEFT, group_size),
            when_over=when_over,
            records={} if journals is None or step is None else journals.records(step, frozenset(numbers)),
            entries=None if journals is None or step is None else journals.entries(step),
            rounds=rounds,
        )

    def rows_of(self, trajectories: Sequence[Trajectory], prompts: Prompts, ordinals: Int64) -> Batch:
        version = self.conversations.version
        return played_batch(trajectories, prompts, ordinals, spec=self.spec, version=version)

    def tasks(self, prompts: Prompts, ordinals: Int64, sampling: Sampling, group_size: int) -> list[Task]:
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
