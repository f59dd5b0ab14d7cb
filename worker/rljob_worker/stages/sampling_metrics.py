"""What the rounds of a step came to: groups that were drawn and dropped, rows that go on, lengths and rewards."""

from __future__ import annotations

from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.batch import Batch
from rljob_worker.batch.trajectories import Trajectories
from rljob_worker.metrics.scalars import Scalars, maximum, mean, mean_of, total
from rljob_worker.stages.draws.assembly import REJECTED, Assembly
from rljob_worker.stages.draws.partial_rows import DRAWN_STEP, UNFINISHED
from rljob_worker.stages.played.played_rows import played_lengths
from rljob_worker.stages.rewarding.reward import kept_places, reward_metrics
from rljob_worker.stages.rollout import rollout_metrics

FIRST_REWARD = "first_reward"
"""Column of a row that may go on: the first of its rewards, which says who is right as it does in validation."""


def sampling_metrics(before: Assembly, assembly: Assembly) -> Scalars:
    """What the rounds of a step came to, equal on all ranks; counts are of groups."""
    num_complete = assembly.num_accepted + sum(assembly.num_rejected.values())
    metrics = {
        "sampling/rounds": mean(assembly.num_rounds),
        "sampling/groups_drawn": mean(assembly.num_drawn),
        "sampling/groups_carried_in": mean(len(before.accepted)),
        "sampling/acceptance": mean(assembly.num_accepted, num_complete),
    }
    return metrics | {f"sampling/groups_{cause.name.lower()}": mean(assembly.num_rejected[cause]) for cause in REJECTED}


def partial_metrics(spec: RLJobSpec, assembly: Assembly, left: Batch | None, out: Batch, step: int) -> Scalars:
    """What goes on after the step; and of its batch, which was complete in several steps, how many steps before this
    one its rows began, their lengths and rewards.

    left: this rank's rows of groups that are not complete. out: those of the batch.
    """
    ages = step - out[DRAWN_STEP].values
    metrics = {
        "partial/groups_unfinished": mean(len(assembly.unfinished)),
        "partial/rows_unfinished": total(0.0 if left is None else float(left[UNFINISHED].values.sum())),
        "partial/age_mean": mean_of(ages),
    }
    if len(ages):
        metrics["partial/age_max"] = maximum(float(ages.max()))
    return metrics | _lengths(spec, out) | _rewards(spec, out)


def _lengths(spec: RLJobSpec, out: Batch) -> Scalars:
    if spec.rollout.played is not None:
        return played_lengths(out, spec.rows_per_trajectory)
    lengths = rollout_metrics(out)
    del lengths["tokens/response_total"]  # of all that the step generated, as rounds say
    return lengths


def _rewards(spec: RLJobSpec, out: Batch) -> Scalars:
    if "rewards" not in out:
        return {}
    ends = Trajectories.of(out.row_ids, spec).ends(out)
    ends = ends.take(kept_places(ends))
    return reward_metrics(ends["rewards"].values, ends[FIRST_REWARD].values, ends.values_of("source"))
