"""Which rows of a team's trajectories are a model's: those of the agents that it plays or values."""

from __future__ import annotations

import numpy as np
import torch

from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.batch import Batch
from rljob_worker.batch.row_index import Int64
from rljob_worker.batch.trajectories import Trajectories
from rljob_worker.errors import BadData
from rljob_worker.stages.row_filter import Filter
from rljob_worker.stages.stage import StageContext


class AgentRows:
    """Those of one model; all rows in a job with one policy."""

    def __init__(self, spec: RLJobSpec, model: str) -> None:
        self._spec = spec
        agents = sorted(spec.agents_of(model)) if spec.is_team_of_policies else []
        self._agents = np.array(agents, np.int64) if len(agents) < spec.num_agents else np.empty(0, np.int64)

    @property
    def are_all(self) -> bool:
        """Whether every row is the model's."""
        return not len(self._agents)

    def places(self, batch: Batch) -> Int64:
        """Places of the model's rows, int64, ascending."""
        if self.are_all:
            return np.arange(len(batch))
        agents = Trajectories.of(batch.row_ids, self._spec).agent_of_row
        places: Int64 = np.flatnonzero(np.isin(agents, self._agents))
        return places

    def of(self, batch: Batch) -> Batch:
        """The model's rows."""
        return batch if self.are_all else batch.take(self.places(batch))

    def not_empty(self, parts: list[Batch], filtered: Filter | None, context: StageContext) -> list[Batch]:
        """Mini-batches of which some rank has a row; an optimizer step on none would move a model by its momentum
        alone. None where no agent of the model took a turn. Raises BadData where a filter leaves nothing of a step.
        Collective, where rows may be missing."""
        if filtered is None and self.are_all:
            return parts
        counts = context.reduce(torch.tensor([len(part) for part in parts], dtype=torch.float64)).tolist()
        if filtered is not None and self.are_all and not any(counts):
            raise BadData(filtered.explain_nothing(context.step))
        return [part for part, count in zip(parts, counts, strict=True) if count]
