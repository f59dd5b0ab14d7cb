"""Whether activations are computed again, where a job leaves that to its plan."""

from __future__ import annotations

from rljob_api.memory.phases import GroupMemory
from rljob_api.planning.limits import Limit, Limits
from rljob_api.planning.memory import Shapes, memory_of
from rljob_api.planning.plan import GroupPlan, Plan


def with_recomputing(plan: Plan, shapes: Shapes, limits: Limits) -> Plan:
    """The plan with `Auto` decided for every group that trains. They are computed again where a worker would not fit
    otherwise, and where nobody can tell whether it would."""
    if plan.spec.training.memory.activation_checkpointing != "Auto":
        return plan
    memory = {each.group: each for each in memory_of(plan, shapes, limits)}
    short = {group.name for group in plan.groups if not _fits(group, memory.get(group.name), limits.get(group.name))}
    engines = (each.model_copy(update={"recomputes": each.trainable and each.group in short}) for each in plan.engines)
    return plan.model_copy(update={"engines": tuple(engines)})


def _fits(group: GroupPlan, memory: GroupMemory | None, limit: Limit | None) -> bool:
    """Whether a worker is known to have room for an update. One on CPUs that nobody limits has."""
    if limit is None:
        return group.device == "cpu"
    peaks = [phase.peak for phase in memory.phases if phase.phase == "train"] if memory is not None else []
    return bool(peaks) and max(peaks) <= limit.usable
