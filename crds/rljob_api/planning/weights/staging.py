"""Where a version waits that comes ahead of its use (`rollout.maxStaleness`): in slots of the host that generates, or
in the memory of each worker's device. Pure."""

from __future__ import annotations

from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_api.planning.plan import Plan
from rljob_api.planning.weights.flows import WeightFlow, buffered_flows


def stageable_flows(plan: Plan, group: str) -> list[WeightFlow]:
    """The models of which workers of a group may take a version while the one before it decodes. Pods of an elastic
    group learn with each lease which version they need, and servers have the weights of an engine of their own."""
    if plan.num_versions == 1 or plan.group(group).elastic is not None:
        return []
    if any(ROLLOUT_ENGINES[item.library].is_remote for item in plan.engines if item.kind == "Rollout"):
        return []
    return [flow for flow in buffered_flows(plan) if any(target.name == group for target in flow.targets)]


def stages_on_device(plan: Plan, group: str) -> bool:
    """Whether workers of a group do: where the job says so, or by default where the plan has found room for it."""
    asked = plan.spec.weight_sync.staging
    if asked == "Auto":
        return any(phase.staged for memory in plan.memory if memory.group == group for phase in memory.phases)
    return asked == "Device" and bool(stageable_flows(plan, group))
