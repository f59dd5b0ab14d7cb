"""The model under an adapter, which costs no memory of its own: what a reference is to the policy that trains one."""

from __future__ import annotations

from rljob_worker.batch import Batch, Column
from rljob_worker.engines.fsdp.engine import FSDPEngine
from rljob_worker.engines.log_probs.linear import LastLayer
from rljob_worker.engines.micro_batch import MicroBatch
from rljob_worker.engines.models import adapter_off


class BaseModel:
    """A ScoringEngine (see `protocols`): another engine's model with its adapter off."""

    def __init__(self, adapted: FSDPEngine) -> None:
        assert adapted.adapter is not None, "a model without an adapter has no base"
        self._adapted = adapted

    def log_probs(self, batch: Batch) -> Column:
        with adapter_off(self._adapted.model):
            return self._adapted.log_probs(batch)

    def values(self, batch: Batch) -> Column:
        raise AssertionError("values were asked of a policy")

    def last_layer(self, rows: MicroBatch) -> LastLayer | None:
        with adapter_off(self._adapted.model):
            return self._adapted.last_layer(rows)

    def free_gathered_weights(self) -> None:
        self._adapted.free_gathered_weights()
