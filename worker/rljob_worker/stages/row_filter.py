"""What a filter of the user's own leaves of a step: the trajectories whose rows have 1 in column `kept`.

A filter takes no row out of the batch, since every stage after it was planned with all of them. Stages that learn leave
out what was not kept, as if it had never been made: no sum, no count and no forward pass of an update has it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_api.catalogue.algorithms import ESTIMATORS
from rljob_api.catalogue.columns import KEPT
from rljob_api.planning.plan import Plan, StagePlan
from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.batch import Batch
from rljob_worker.batch.row_index import row_number
from rljob_worker.batch.trajectories import Trajectories
from rljob_worker.errors import BadData

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Filter:
    """The stage whose choice another one sees."""

    name: str
    rows_per_trajectory: int = 1
    num_agents: int = 1
    may_tear_groups: bool = False
    """Whether what is left of a group is compared without the others: trajectories failed, and nobody chose."""

    @staticmethod
    def before(stage: StagePlan, plan: Plan) -> Filter | None:
        """None where the job filters nothing before this stage."""
        column = stage.rename.get(KEPT, KEPT)
        inputs = (edge for edge in plan.inputs(stage.name) if column in edge.columns)
        edge = next(inputs, None)
        if edge is None:
            return None
        may_tear = plan.stage(edge.producer).run in ("Rollout", "Sample")
        return Filter(edge.producer, plan.rows_per_trajectory, plan.spec.num_agents, may_tear)

    def flags(self, batch: Batch) -> Flags:
        """Which rows are kept, bool [rows]. Raises BadData for a column that does not say it."""
        column = batch[KEPT]
        if column.is_ragged or column.values.ndim != 1 or not np.isin(column.values, (0, 1)).all():
            raise BadData(
                f"stage {self.name}: column {KEPT} says for each row whether it is kept, with one True or False, or 1 "
                "or 0; this one has other values"
            )
        flags = np.asarray(column.values != 0)
        self._require_whole_trajectories(batch, flags)
        return flags

    def _require_whole_trajectories(self, batch: Batch, flags: Flags) -> None:
        trajectories = Trajectories(batch.row_ids, self.rows_per_trajectory, self.num_agents)
        torn = np.flatnonzero(flags != flags[trajectories.first][trajectories.of_row])
        if len(torn):
            raise BadData(
                f"stage {self.name} keeps row {row_number(batch.row_ids[torn[0]])} or not, unlike the first row of its "
                "trajectory: keep all rows of a trajectory or none"
            )

    def rows(self, batch: Batch) -> Batch:
        """The rows that are kept."""
        return batch.take(np.flatnonzero(self.flags(batch)))

    def require_whole_groups(self, batch: Batch, spec: RLJobSpec) -> None:
        """Raises BadData for a group of which only a part is kept, where the estimator compares its rows."""
        estimator = ESTIMATORS.get(spec.algorithm.advantage.estimator)
        if (
            self.may_tear_groups
            or spec.algorithm.group_size == 1
            or (estimator is not None and not estimator.compares_groups)
        ):
            return
        groups, group = np.unique(batch.group_ids, return_inverse=True)
        rows, kept = np.bincount(group), np.bincount(group, self.flags(batch)).astype(np.int64)
        torn = np.flatnonzero((kept > 0) & (kept < rows))
        if len(torn):
            raise BadData(
                f"stage {self.name} kept {kept[torn[0]]} of the {rows[torn[0]]} rows of group {groups[torn[0]]}, and "
                f"the estimator {spec.algorithm.advantage.estimator} compares the rows of a group with one another: "
                f"keep all rows of a group or none, or put {self.name} after the Advantage stage, where every row has "
                "been compared already"
            )

    def explain_nothing(self, step: int) -> str:
        """What a step says of which no row is left."""
        return (
            f"step {step}: stage {self.name} kept no row, so there is nothing to learn from; let it keep more, or set "
            "algorithm.sampling.dynamic, which draws prompts until there are enough groups of unequal rewards"
        )
