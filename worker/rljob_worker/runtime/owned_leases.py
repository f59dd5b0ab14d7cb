"""What a worker of the lead's group does about guests: it says when steps and validations may be leased, and merges
what the pieces of a validation came to."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_api.planning.plan import Plan
from rljob_api.planning.weights.versions import policy_version
from rljob_worker.databuffer.client import BufferClient
from rljob_worker.databuffer.routes.guest_route import VALIDATION_PIECES
from rljob_worker.metrics.report import StepReport, report_from_bytes
from rljob_worker.metrics.scalars import Scalars, merge_all, total
from rljob_worker.runtime.control import Opening


@dataclass(frozen=True, slots=True)
class OwnedLeases:
    """Leases of the ranks of one worker's host."""

    plan: Plan
    client: BufferClient
    opening: Opening
    reports_counts: bool
    """Whether this worker is the one of its host that reports the counts."""

    def open(self, trained: int) -> None:
        """Guests may draw the steps whose weights are there once a step was trained."""
        spec, opening = self.plan.spec, self.opening
        last = min(trained + 1 + spec.rollout.max_staleness, opening.last_step or spec.stop.steps, spec.stop.steps)
        self.client.open_leases(opening.step + 1, last, self._oldest_version)

    def open_validation(self, trained: int) -> None:
        """Guests may validate a step that was trained: before they draw another one with its weights."""
        self.client.open_validation(trained, self._oldest_version)

    def validation(self, trained: int) -> StepReport:
        """What guests found in the pieces of this rank. Waits for those of all ranks; rows to look at are of the first
        piece."""
        reports = {
            lease.index: report_from_bytes(lease.report) for lease in self.client.deliveries(VALIDATION_PIECES, trained)
        }
        in_order = [reports[index] for index in sorted(reports)]
        samples = [sample for report in in_order for sample in report.samples]
        return StepReport(merge_all([report.metrics for report in in_order], exactly=True), samples)

    def counts(self) -> Scalars:
        """Counts of guests and leases of this host."""
        if not self.reports_counts:
            return {}
        counts = self.client.guests()
        return {
            "generators/there": total(counts.num_there),
            "generators/lost_total": total(counts.num_lost),
            "leases/given_again_total": total(counts.given_again),
            "leases/dropped_late_total": total(counts.dropped_late),
        }

    @property
    def _oldest_version(self) -> int:
        spec = self.plan.spec
        return policy_version(spec, self.opening.step) if spec.checkpoint.versions == "Redraw" else 0


def owned_leases(plan: Plan, group: str, local_rank: int, client: BufferClient, opening: Opening) -> OwnedLeases | None:
    """None in a job without an elastic group, and in groups that own no leases."""
    if plan.elastic_group is None or group != plan.lead_group:
        return None
    return OwnedLeases(plan, client, opening, reports_counts=local_rank == 0)
