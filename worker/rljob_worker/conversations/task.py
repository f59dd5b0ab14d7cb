"""What a conversation is about: one row of the data, and which attempt at it this is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rljob_worker.batch import Indices
from rljob_worker.conversations.messages import Message

SEEDS = 1 << 31
"""Seeds of environments are below this."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a run function is given of a trajectory. Equal tasks are played alike, whatever runs beside them."""

    messages: tuple[Message, ...]
    """The prompt, as chat templates take it; a text is one message of the user."""
    prompt_ids: Indices
    """int64 [tokens] of the prompt as the job's data spec has it, without tools."""
    columns: Mapping[str, str]
    """Columns of the data that the job names; and `source`, the data set's name."""
    seed: int
    """Number for the group, for what all of its trajectories begin with, such as an environment."""
    group: int
    """Number of the prompt, over the whole job."""
    member: int
    """Which of the group's trajectories it is, from 0."""
    trajectory: int
    """Number of the trajectory, over the whole job."""
    pictures: tuple[bytes, ...] = ()
    """Encoded, in the order of their places in the prompt."""
    job_seed: int = 0
    attempt: int = 0
    """1 where the group is drawn again."""
    random: np.random.Generator = field(default_factory=np.random.default_rng)
    """The trajectory's own random numbers: equal in every run of the job."""

    @staticmethod
    def of_group(
        messages: Sequence[Message],
        prompt_ids: Indices,
        columns: Mapping[str, str],
        *,
        job_seed: int,
        group: int,
        group_size: int,
        pictures: Sequence[bytes] = (),
    ) -> list[Task]:
        """The tasks of a prompt's trajectories. messages: with the pictures in their places."""
        seed = int(np.random.SeedSequence([job_seed, group]).generate_state(1)[0]) % SEEDS
        first = Task(
            tuple(messages), prompt_ids, columns, seed, group, 0, group * group_size, tuple(pictures), job_seed
        )
        tasks = (replace(first, member=member, trajectory=first.trajectory + member) for member in range(group_size))
        return [task.again(0) for task in tasks]

    def again(self, attempt: int) -> Task:
        """The task with random numbers of this attempt, from their first."""
        entropy = [self.job_seed, self.trajectory, attempt, 1]
        return replace(self, attempt=attempt, random=np.random.default_rng(np.random.SeedSequence(entropy)))
