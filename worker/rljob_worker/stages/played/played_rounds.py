"""Rounds of `rollout.partial` in a job of conversations.

In a round every trajectory, new or carried, samples at most `tokensPerRound` tokens. What has not ended by then rests
in the event loop (`conversations.playing.turns`); here are the rows of both kinds of groups, and what a checkpoint has
of those that rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rljob_worker.batch import Batch
from rljob_worker.batch.row_index import Int64
from rljob_worker.conversations.playing.commands import shared_batch
from rljob_worker.conversations.playing.turns import CarriedTrajectory, Rounds
from rljob_worker.conversations.task import Task
from rljob_worker.conversations.trajectory import Trajectory
from rljob_worker.data.dataset import Prompts
from rljob_worker.engines.protocols import CopyOfRanks
from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.metrics.scalars import Scalars, total
from rljob_worker.stages.draws.partial_rows import DRAWN_STEP
from rljob_worker.stages.played.carried_trajectories import carried_columns, carried_of, with_journals
from rljob_worker.stages.played.conversation_rollout import Begin, ConversationRollout, Played

_OF_BATCH = ("response_length/mean", "response_length/max", "response/truncated_fraction", "tokens/total")
"""Figures of the batch of a step, and not of what its rounds completed."""


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """A group that is not complete."""

    prompt: Prompts
    """One."""
    drawn_step: int
    """In which it began."""


class PlayedRounds:
    """Those of one rank."""

    def __init__(self, rollout: ConversationRollout) -> None:
        self._rollout, self._spec, self._conversations = rollout, rollout.spec, rollout.conversations
        self._rows_per_trajectory = rollout.spec.rows_per_trajectory
        self._open: dict[int, OpenGroup] = {}
        """Groups that are not complete after the last round."""
        self._step: int | None = None
        """In which the last round was."""

    def unread(self, ordinals: Int64, carried: Batch | None) -> Int64:
        """Groups whose prompts `play` is to be given: those that begin, behind those of a checkpoint after a restart.
        Arguments as there."""
        before = [] if carried is None else np.unique(carried.group_ids).tolist()
        restored = np.array([group for group in before if group not in self._open], np.int64)
        return np.concatenate([restored, ordinals])

    def play(
        self,
        prompts: Prompts,
        ordinals: Int64,
        carried: Batch | None,
        sampling: Sampling,
        copy: CopyOfRanks,
        *,
        step: int,
        begin: Begin | None = None,
        shows: Callable[[int], bool] = lambda group: False,
    ) -> Played:
        """A round: groups begin, and those that are not complete go on. Rows of the groups that are complete after it,
        and of the others. Every rank of a copy calls it alike.

        prompts: of the groups `unread`. carried: rows of groups that are not complete. shows: whether a person is shown
        what was played in a group.
        """
        numbers = self.unread(ordinals, carried)
        restored = self._restored(carried, numbers)
        self._open |= self._opened(prompts, numbers, carried, step)
        rounds = self._rounds(restored, step)
        tasks = self._tasks(prompts, numbers, restored, sampling) if copy.is_leader else []
        over = None if begin is None else self._rollout.when_over(begin, lambda group: self._open[group].prompt, step)
        group_size = self._spec.algorithm.group_size
        play = self._rollout.play_of(tasks, sampling, step, over, group_size, rounds)
        trajectories = self._conversations.play(play, copy)
        complete = shared_batch(copy, lambda: self._complete_rows(trajectories, prompts))
        unfinished = shared_batch(copy, lambda: self._unfinished_rows(prompts))
        self._open = {group: self._open[group] for group in np.unique(unfinished.group_ids).tolist()}
        shown = [item for item in trajectories if shows(item.task.group)]
        played = self._rollout.played(complete, trajectories, shown, copy)
        metrics = {name: value for name, value in played.metrics.items() if name not in _OF_BATCH}
        metrics |= self._figures(trajectories) if copy.is_leader else {}
        return replace(played, metrics=metrics, unfinished=unfinished)

    def _opened(self, prompts: Prompts, numbers: Int64, carried: Batch | None, step: int) -> dict[int, OpenGroup]:
        """Groups that begin, or are of a checkpoint; as many as prompts."""
        begun = dict[int, int]()
        if carried is not None:
            begun = dict(zip(carried.group_ids.tolist(), carried[DRAWN_STEP].values.tolist(), strict=True))
        parts = (prompts.take(np.array([at])) for at in range(len(numbers)))
        return {
            group: OpenGroup(part, begun.get(group, step)) for group, part in zip(numbers.tolist(), parts, strict=True)
        }

    def _rounds(self, restored: Mapping[tuple[int, int], CarriedTrajectory], step: int) -> Rounds:
        partial = self._spec.rollout.partial
        assert partial is not None
        begun_in = {group: item.drawn_step for group, item in self._open.items()}
        last = frozenset(group for group, begun in begun_in.items() if step - begun >= partial.max_carries)
        before, self._step = self._step, step
        return Rounds(partial.tokens_per_round, begun_in, last, restored, begins_step=step != before)

    def _tasks(
        self,
        prompts: Prompts,
        numbers: Int64,
        restored: Mapping[tuple[int, int], CarriedTrajectory],
        sampling: Sampling,
    ) -> list[Task]:
        """Trajectories of groups that begin, or are of a checkpoint, in their first or second attempt."""
        attempts = dict(restored.keys())
        tasks = self._rollout.tasks(prompts, numbers, sampling, self._spec.algorithm.group_size)
        return [task.again(attempts.get(task.trajectory, 0)) for task in tasks]

    def _figures(self, trajectories: Sequence[Trajectory]) -> Scalars:
        return {
            "tokens/response_total": total(float(self._conversations.num_tokens)),
            "partial/rows_cut_off": total(float(sum(item.is_cut_off for item in trajectories))),
        }

    def with_journals(self, unfinished: Batch) -> Batch:
        """Rows of groups that are not complete as a checkpoint has them; on the leader of a copy."""
        return with_journals(unfinished, self._conversations.under_way(), self._rows_per_trajectory)

    def _restored(self, carried: Batch | None, numbers: Int64) -> dict[tuple[int, int], CarriedTrajectory]:
        """What a checkpoint has of trajectories of these groups."""
        if carried is None:
            return {}
        return carried_of(carried.take(np.flatnonzero(np.isin(carried.group_ids, numbers))), self._rows_per_trajectory)

    def _complete_rows(self, trajectories: Sequence[Trajectory], empty: Prompts) -> Batch:
        groups = sorted({item.task.group for item in trajectories})
        return self._rows_of_round(trajectories, groups, empty, [False] * len(trajectories))

    def _unfinished_rows(self, empty: Prompts) -> Batch:
        turns = [turns for _, turns in sorted(self._conversations.under_way().items())]
        groups = sorted({item.task.group for item in turns})
        return self._rows_of_round(
            [Trajectory(item.task) for item in turns], groups, empty, [item.is_resting for item in turns]
        )

    def _rows_of_round(
        self, trajectories: Sequence[Trajectory], groups: Sequence[int], prompts: Prompts, is_unfinished: Sequence[bool]
    ) -> Batch:
        """prompts: any, which say what columns there are. is_unfinished: [trajectories]."""
        of_groups = Prompts.concat([prompts.take(np.empty(0, np.int64)), *(self._open[item].prompt for item in groups)])
        rows = self._rollout.rows_of(trajectories, of_groups, np.array(groups, np.int64))
        unfinished = {item.task.trajectory: value for item, value in zip(trajectories, is_unfinished, strict=True)}
        numbers = (rows.row_ids // self._rows_per_trajectory).tolist()
        steps = [self._open[group].drawn_step for group in rows.group_ids.tolist()]
        return rows.with_columns(carried_columns(steps, is_unfinished=[unfinished[number] for number in numbers]))
