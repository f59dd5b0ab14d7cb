"""Groups of trajectories that are played: which are complete, and which are drawn again since too many failed."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_worker.conversations.task import Task
from rljob_worker.conversations.trajectory import Trajectory


class Groups:
    """Those that are under way, and those that became complete and were not taken yet."""

    def __init__(self) -> None:
        self._tasks: dict[int, list[Task]] = {}
        self._over: dict[int, Trajectory] = {}
        """By number, of groups that are not complete and of those that are."""
        self._left: dict[int, int] = {}
        """Trajectories of each group that are not over."""
        self.num_redrawn = 0

    def begin(self, tasks: Sequence[Task]) -> None:
        """These are played from now on, whole groups."""
        for task in tasks:
            self._tasks.setdefault(task.group, []).append(task)
            self._left[task.group] = self._left.get(task.group, 0) + 1

    def end(self, trajectory: Trajectory, least_left: int) -> tuple[tuple[Trajectory, ...], list[Task]]:
        """A trajectory is over. Its whole group where that was the last one; or what is played in its place, where
        fewer than `least_left` did not fail and it was drawn for the first time."""
        group = trajectory.task.group
        self._over[trajectory.task.trajectory] = trajectory
        self._left[group] -= 1
        if self._left[group]:
            return (), []
        trajectories = self._trajectories(group)
        num_good = sum(item.failed is None for item in trajectories)
        if num_good >= least_left or trajectories[0].task.attempt:
            return trajectories, []
        self.num_redrawn += 1
        self._tasks[group] = [task.again(1) for task in self._tasks[group]]
        self._left[group] = len(self._tasks[group])
        return (), self._tasks[group]

    def take_complete(self) -> list[Trajectory]:
        """Trajectories of the groups that are complete, in their order; they are forgotten."""
        complete = sorted(group for group, left in self._left.items() if not left)
        trajectories = [item for group in complete for item in self._trajectories(group)]
        for item in trajectories:
            del self._over[item.task.trajectory]
        for group in complete:
            del self._left[group], self._tasks[group]
        return trajectories

    def _trajectories(self, group: int) -> tuple[Trajectory, ...]:
        return tuple(self._over[task.trajectory] for task in self._tasks[group])
