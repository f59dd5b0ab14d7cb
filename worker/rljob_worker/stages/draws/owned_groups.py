"""Groups that were drawn and are in no batch yet, as their owner keeps them from one generation step to the next.

Draw number g is owned by rank g mod ranks of the stage. Whoever drew it, fixed by rank or by a lease, hands its rows to
that rank at the end of the step, so that a rank keeps nothing that it generated but what it owns. What an owner keeps
follows from the job alone, and so does its part of a checkpoint: the state after step c, copied as step c ends.

    3 ranks, 12 is surplus and was drawn by rank 2     rank 2 hands it to rank 0, which keeps it and writes it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from rljob_api.planning.weights.versions import is_warm_up
from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.batch import Batch, Column
from rljob_worker.batch.arrow import from_arrow, to_arrow
from rljob_worker.conversations.playing.commands import shared_batch
from rljob_worker.metrics.scalars import Scalars, mean
from rljob_worker.stages.draws.assembly import Assembly, Carries, Int64
from rljob_worker.stages.draws.partial_rows import complete_groups, like
from rljob_worker.stages.stage import StageContext

NO_NUMBERS: Int64 = np.empty(0, np.int64)


class OwnedGroups:
    """Those of one rank, and the draw numbers of those of all ranks: pure book-keeping.

    Surplus groups are kept while the policy that made them is the current one, and with `rollout.partial` always.
    Groups that are not complete, which only `rollout.partial` has, are kept until they are.
    """

    def __init__(self, spec: RLJobSpec) -> None:
        self._spec = spec
        self._is_partial = spec.rollout.partial is not None
        self._next_number: int | None = None
        self._surplus: Int64 = NO_NUMBERS
        """Draw numbers of the surplus, on any rank."""
        self._unfinished: Int64 = NO_NUMBERS
        """Draw numbers of groups that are not complete, on any rank."""
        self._first_numbers: tuple[int, ...] = ()
        """First draw numbers of the steps of which groups may be in flight."""
        self._is_dealt = True
        """Whether rows are with their owners: those of a checkpoint may be of another number of ranks."""
        self.surplus_rows: Batch | None = None
        """This rank's rows of the surplus; None before the first step."""
        self.unfinished_rows: Batch | None = None
        """This rank's rows of groups that are not complete; None where it has none."""

    def first_number(self, step: int) -> int:
        """Where a step goes on; a run that has no owners yet has drawn a batch each step."""
        return (step - 1) * self._spec.data.batch_size if self._next_number is None else self._next_number

    def begin(self, context: StageContext) -> Assembly:
        """The step before its first round. Collective over the ranks of the stage after a resume."""
        if not self._is_dealt:
            self._deal(context)
        first, carries, partial = self.first_number(context.step), None, self._spec.rollout.partial
        if partial is not None:
            self._first_numbers = (*self._first_numbers, first)[-partial.max_carries - 1 :]
            carries = Carries(partial.max_carries, self._first_numbers)
        return Assembly(self._spec.data.batch_size, first, self._surplus, self._unfinished, carries)

    def coming(self, assembly: Assembly, oversampling: float) -> Int64:
        """Draw numbers of the first round of the next step, as far as they are known. assembly: of the step that was
        kept last."""
        return Assembly(assembly.batch_size, assembly.next_number, self._surplus).draw(oversampling)

    def keep(self, assembly: Assembly, held: Batch, unfinished: Batch | None, context: StageContext) -> Scalars:
        """Take over what a step leaves; collective over the ranks of the stage where that is anything.

        Surplus is kept if the step leaves the policy as it is; or, where batches are off-policy anyway, what is of this
        step: it is used in the next one or not at all, and is one version older then. With `rollout.partial` nothing is
        given up: what is quick to answer would be trained on more often.

        held: rows of accepted groups that this rank drew, or owned. unfinished: of those that are not complete.
        """
        surplus, is_old = assembly.surplus, np.isin(assembly.surplus, self._surplus)
        self._next_number, self._unfinished = assembly.next_number, assembly.unfinished
        if not self._is_partial and not is_warm_up(self._spec, context.step):
            surplus = surplus[~is_old] if self._spec.rollout.max_staleness > 0 else surplus[:0]
        self._surplus, self.unfinished_rows = surplus, unfinished
        self.surplus_rows = held.take(np.flatnonzero(np.isin(held.group_ids, surplus)))
        if not self._is_partial and len(surplus):  # otherwise owners draw what they own
            self.surplus_rows = rows_of_owner(self.surplus_rows, context)
        return {
            "sampling/groups_carried_on": mean(len(surplus)),
            "sampling/groups_surplus": mean(len(assembly.surplus) - len(surplus)),
        }

    @property
    def surplus(self) -> Int64:
        return self._surplus

    # ---- checkpoints

    def state(self) -> dict[str, Any]:
        """In plain values that JSON holds."""
        state = {"next_ordinal": self._next_number, "carried": self._surplus.tolist()}
        if not self._is_partial:
            return state
        return {**state, "unfinished": self._unfinished.tolist(), "first_ordinals": list(self._first_numbers)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """What `state` gave."""
        self._next_number = state["next_ordinal"]
        self._surplus = np.array(state["carried"], np.int64)
        self._unfinished = np.array(state.get("unfinished", []), np.int64)
        self._first_numbers = tuple(state.get("first_ordinals", ()))

    def rows(self, unfinished: Batch | None) -> Batch | None:
        """This rank's rows as a checkpoint has them; None when no rank has any. unfinished: `unfinished_rows`, as they
        are written."""
        if not len(self._surplus) and not len(self._unfinished):
            return None
        surplus = self.surplus_rows
        assert surplus is not None, "a step was kept"
        return surplus if unfinished is None else Batch.concat([surplus, like(unfinished, surplus)])

    def load_rows(self, parts: Sequence[Batch]) -> None:
        """What `rows` gave on one or several ranks, possibly on none."""
        self.surplus_rows, self.unfinished_rows, self._is_dealt = None, None, False
        if parts:
            self._put(Batch.concat([with_versions(part) for part in parts]))

    def _put(self, rows: Batch) -> None:
        if self._is_partial:
            rows, unfinished = complete_groups(rows)
            self.unfinished_rows = unfinished if len(unfinished) else None
        self.surplus_rows = rows

    def _deal(self, context: StageContext) -> None:
        """Hand rows of a checkpoint to their owners."""
        self._is_dealt = True
        if len(self._surplus) or len(self._unfinished):
            there = None if self.surplus_rows is None else self.rows(self.unfinished_rows)
            self._put(rows_of_owner(there, context))


def rows_of_owner(rows: Batch | None, context: StageContext) -> Batch:
    """Those that this rank owns of the rows of all ranks. Collective over the ranks of the stage; every rank of a copy
    calls it alike. rows: this rank's; None where it does not even know their columns."""

    def exchanged() -> Batch:
        parts: list[torch.Tensor] = [torch.empty(0, dtype=torch.uint8)] * context.dp_size
        if rows is not None:
            owners = rows.group_ids % context.dp_size
            parts = [_packed(rows.take(np.flatnonzero(owners == rank))) for rank in range(context.dp_size)]
        return Batch.concat([_unpacked(part) for part in context.exchange(parts) if len(part)])

    if context.dp_size == 1 and rows is not None:
        return rows
    return shared_batch(context.copy, exchanged)


def _packed(rows: Batch) -> torch.Tensor:
    """uint8 [bytes]: an Arrow stream."""
    record, sink = to_arrow(rows), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, record.schema) as writer:
        writer.write_batch(record)
    return torch.frombuffer(bytearray(sink.getvalue().to_pybytes()), dtype=torch.uint8)


def _unpacked(stream: torch.Tensor) -> Batch:
    with pa.ipc.open_stream(stream.numpy().tobytes()) as reader:
        return from_arrow(reader.read_next_batch())


def with_versions(batch: Batch) -> Batch:
    """Rows that may have been kept by a run which knew one version per row only."""
    if "token_versions" in batch:
        return batch
    response_ids = batch["response_ids"]
    versions = np.repeat(batch["policy_version"].values, response_ids.lengths)
    of_tokens = Column(versions, response_ids.offsets, "int64")
    return batch.with_columns({"last_policy_version": batch["policy_version"], "token_versions": of_tokens})
