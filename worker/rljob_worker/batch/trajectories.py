"""Which rows are one trajectory: one attempt at a prompt, which has one row or, in a conversation, several.

trajectory_id = row_id // rows_per_trajectory; rows are numbered from the first, without a gap:

    row_ids [12, 13, 15, 18]  3 per trajectory  ->  first [0, 2, 3]   of_row [0, 0, 1, 2]   last [1, 2, 3]

Where several agents play, each has equally many of a trajectory's numbers, in the order of the job, and its rows are
numbered from its first one; an agent that took no turn has none:

    row_ids [12, 14, 15]  2 for each of 2 agents  ->  of_row [0, 0, 0]   agent_of_row [0, 1, 1]

What compares or counts does it with trajectories, and gives each of their rows what the trajectory got.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from rljob_worker.batch.row_index import row_number
from rljob_worker.errors import BadData

if TYPE_CHECKING:
    from rljob_api.v1alpha1 import RLJobSpec
    from rljob_worker.batch import Batch

Int64 = NDArray[np.int64]
Value = TypeVar("Value", bound=np.generic)

TRAJECTORY_ID = "trajectory_id"
"""Column, int64 [rows], of an update whose loss needs all rows of a trajectory in one micro-batch."""


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Those of one rank's rows, in the order of their ids."""

    row_ids: Int64
    """[rows], ascending."""
    rows_per_trajectory: int
    """As many numbers a trajectory has; it may have fewer rows."""
    num_agents: int = 1
    """Agents that share the numbers of a trajectory equally."""

    def __post_init__(self) -> None:
        """Raises BadData for a row whose trajectory, or agent, has an earlier one that is not here."""
        if self.rows_per_trajectory == 1 or not len(self.row_ids):
            return
        begins = self.row_ids % self.rows_per_agent == 0
        follows = np.diff(self.row_ids, prepend=self.row_ids[0] - 2) == 1
        if len(torn := np.flatnonzero(~(begins | follows))):
            row_id = int(self.row_ids[torn[0]])
            trajectory, index = divmod(row_id, self.rows_per_trajectory)
            raise BadData(
                f"row {row_number(row_id)} is row {index + 1} of trajectory {trajectory}, whose row {index} is not "
                "here: a trajectory has all of its rows on one rank, numbered from the first without a gap"
            )

    def __len__(self) -> int:
        return len(self.first)

    @cached_property
    def ids(self) -> Int64:
        """The trajectory_id of each row, [rows]."""
        return self.row_ids // self.rows_per_trajectory

    @staticmethod
    def of(row_ids: Int64, spec: RLJobSpec) -> Trajectories:
        """Those of a job's rows."""
        return Trajectories(row_ids, spec.rows_per_trajectory, spec.num_agents)

    @staticmethod
    def rewarded(row_ids: Int64, spec: RLJobSpec) -> Trajectories:
        """What of a job's rows has one reward: trajectories, or what each agent has of them."""
        trajectories = Trajectories.of(row_ids, spec)
        return trajectories.of_agents if spec.rewards_agents else trajectories

    @property
    def rows_per_agent(self) -> int:
        """As many numbers each agent has."""
        return self.rows_per_trajectory // self.num_agents

    @property
    def of_agents(self) -> Trajectories:
        """What each agent has of each trajectory, as a trajectory of its own."""
        return self if self.num_agents == 1 else Trajectories(self.row_ids, self.rows_per_agent)

    @cached_property
    def agent_of_row(self) -> Int64:
        """Which agent acts in each row, by its place in the job: [rows]."""
        return self.row_ids // self.rows_per_agent % self.num_agents

    @cached_property
    def first(self) -> Int64:
        """Position of each trajectory's first row, [trajectories]."""
        if self.rows_per_trajectory == 1:
            return np.arange(len(self.row_ids))
        return np.flatnonzero(np.diff(self.ids, prepend=-1))

    @cached_property
    def last(self) -> Int64:
        """Position of each trajectory's last row, which stands for it where a person looks at one."""
        return np.append(self.first[1:], len(self.row_ids))[: len(self)] - 1

    @cached_property
    def of_row(self) -> Int64:
        """The trajectory of each row, counted from 0: [rows]."""
        if self.rows_per_trajectory == 1:
            return self.first
        return np.repeat(np.arange(len(self)), np.diff(self.first, append=len(self.row_ids)))

    def ends(self, batch: Batch) -> Batch:
        """The last row of each."""
        return batch if self.rows_per_trajectory == 1 else batch.take(self.last)

    def on_rows(self, values: NDArray[Value]) -> NDArray[Value]:
        """What each trajectory got, on each of its rows. values: [trajectories]. Returns [rows]."""
        return values[self.of_row]

    def any_row(self, flags: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Whether something holds of any row of a trajectory. flags: [rows]. Returns [trajectories]."""
        return np.bincount(self.of_row, flags, minlength=len(self)) > 0

    def require_alike(self, values: NDArray[Value], what: str) -> None:
        """Raises BadData where rows of one trajectory differ in what belongs to the trajectory. values: [rows]."""
        if self.rows_per_trajectory == 1:
            return
        differs = values != values[self.first][self.of_row]
        if len(broken := np.flatnonzero(differs)):
            row = int(broken[0])
            first = int(self.first[self.of_row[row]])
            raise BadData(
                f"row {row_number(self.row_ids[row])} has the {what} {values[row]} and row "
                f"{row_number(self.row_ids[first])} of the same trajectory {values[first]}: a {what} belongs to the "
                "trajectory, so give it to each of its rows"
            )

    def require_of_groups(self, group_ids: Int64, group_size: int) -> None:
        """Raises BadData for a group with a trajectory that has no row. group_ids: [rows], whole groups."""
        groups, number = np.unique(group_ids[self.first], return_counts=True)
        if not len(lacking := np.flatnonzero(number < group_size)):
            return
        group, result = int(groups[lacking[0]]), int(number[lacking[0]])
        of_group = np.arange(group * group_size, (group + 1) * group_size)
        (missing, *_) = np.setdiff1d(of_group, self.ids).tolist()
        raise BadData(
            f"trajectory {missing} has no row: group {group} has {result} of groupSize {group_size} trajectories here; "
            "whatever became of a trajectory, it has a row, if with no response"
        )
