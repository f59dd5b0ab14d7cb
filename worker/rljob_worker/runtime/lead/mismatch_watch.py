"""`rollout.maxMismatch`: ends a job whose training computes other log-probs than its rollout engine did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rljob_api.v1alpha1 import MaxMismatchSpec, RLJobSpec
from rljob_worker.errors import BadData
from rljob_worker.metrics.by_policy import label_and_name

METRIC = "mismatch/probs_diff_max"

DEFAULT_WITH_PICTURES = MaxMismatchSpec(probs_diff_max=0.05, steps=2)
"""In Float32, rows drawn with the newest weights. A policy that is trained without the pictures that its rows were
drawn with differs by tenths; rounding by less than 0.0001."""


def limit_of(spec: RLJobSpec) -> MaxMismatchSpec | None:
    """What the job says, or the default of jobs with pictures; None where differences are normal. spec: of a plan,
    whose precision is settled."""
    rollout = spec.rollout
    if rollout.max_mismatch is not None or not spec.sees:
        return rollout.max_mismatch
    is_exact = spec.training.precision != "BFloat16" and rollout.max_staleness == 0 and rollout.partial is None
    return DEFAULT_WITH_PICTURES if is_exact else None


@dataclass
class MismatchWatch:
    """Counts steps in a row, of each policy, whose mismatch is above the limit."""

    spec: RLJobSpec
    _in_a_row: dict[str | None, int] = field(default_factory=dict)

    def check(self, step: int, metrics: Mapping[str, float]) -> None:
        """After a step, with its metrics; one without the metric changes nothing. Raises BadData at the limit."""
        limit = limit_of(self.spec)
        if limit is None:
            return
        for labelled_name, value in metrics.items():
            policy, name = label_and_name(labelled_name)
            if name != METRIC:
                continue
            self._in_a_row[policy] = self._in_a_row.get(policy, 0) + 1 if value > limit.probs_diff_max else 0
            if self._in_a_row[policy] >= limit.steps:
                raise BadData(self._explain(step, policy, value, limit))

    def _explain(self, step: int, policy: str | None, value: float, limit: MaxMismatchSpec) -> str:
        data = self.spec.data
        named = (("imagesColumn", data.images_column), ("videosColumn", data.videos_column))
        shown = ", ".join(f"data.{name}: {column}" for name, column in named if column)
        columns = "prompt_ids, response_ids" + (f" and images ({shown})" if shown else "")
        of_policy = f" of policy {policy}" if policy else ""
        return (
            f"step {step}: what training says of the sampled tokens{of_policy} is not what the rollout engine said of "
            f"them: {METRIC} is {value:.4g}, above rollout.maxMismatch.probsDiffMax: {limit.probs_diff_max:g} in "
            f"{limit.steps} steps in a row. Both read the columns {columns}, and one of them computes with other "
            "inputs or weights; compare rollout_log_probs with old_log_probs in `rljob samples --tokens`, or raise "
            "rollout.maxMismatch if this is rounding"
        )
