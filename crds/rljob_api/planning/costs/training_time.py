"""How many seconds a worker trains and scores in a step, predicted from what its meshes send and compute. Pure.

    computed    operations / (operations per second)
    stages      computed x what a worker waits for other pipeline stages
    dp          bytes / link, as far as that is longer than what is computed meanwhile: weights are gathered ahead
    other axes  bytes / link; between hosts bytes / network
    host        2 x optimizer bytes / host link, once in an optimizer step, where the optimizer waits there; of
                parameters the shard in every pass of every micro-batch, its gradients back, and 28 bytes of each
                number that the host's processors step

It is no promise: rows are taken to be at their longest, and kernels to reach what the profile says at any size. What it
is for is to compare ways of training one job.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from rljob_api.catalogue.profiles import AcceleratorSpeed
from rljob_api.memory.model_shape import Shapes
from rljob_api.pipeline.meshes import MeshCost
from rljob_api.planning.costs.mesh_costs import model_passes
from rljob_api.planning.memory.layouts import packs_of, parallel_layout
from rljob_api.planning.plan import EnginePlan, Plan

STEP_BYTES = 28
"""Read and written of each number of an optimizer step: weight, gradient and two means, of 4 bytes each."""


def training_seconds(plan: Plan, shapes: Shapes, speeds: Mapping[str, AcceleratorSpeed]) -> float:
    """Seconds of the group that takes longest. speeds: by group. Groups without a model of known shape count as 0."""
    seconds = dict.fromkeys(speeds, 0.0)
    for cost in plan.meshes:
        seconds[cost.group] += _mesh_seconds(cost, speeds[cost.group])
    for engine in plan.engines:
        if engine.kind == "Train" and engine.path in shapes:
            seconds[engine.group] += _host_seconds(plan, engine, shapes, speeds[engine.group])
    return max(seconds.values(), default=0.0)


def _mesh_seconds(cost: MeshCost, speed: AcceleratorSpeed) -> float:
    computed = cost.operations / speed.operations
    result = computed
    for axis in cost.axes:
        sent = axis.sent / (speed.network if axis.crosses_hosts else speed.link)
        result += computed * (axis.waits or 0) + (max(0.0, sent - computed) if axis.axis == "dp" else sent)
    return result


def _host_seconds(plan: Plan, engine: EnginePlan, shapes: Shapes, speed: AcceleratorSpeed) -> float:
    """What waits on the host travels for every use."""
    layout, offload = parallel_layout(plan, engine, shapes[engine.path], 0), engine.offload
    asked, backwards = model_passes(plan, engine)
    steps = plan.spec.num_optimizer_steps * (backwards > 0)
    if offload.parameters:
        all_tokens, pack = packs_of(plan, engine)
        packs = plan.spec.num_mini_batches * ceil(all_tokens / pack)
        moved = packs * ((asked + backwards * (1 + engine.recomputes)) * layout.shard + backwards * layout.own_trained)
        return moved / speed.host + steps * layout.own_trained / layout.stored * STEP_BYTES / speed.host_memory
    return steps * 2 * layout.optimizer / speed.host if offload.optimizer else 0.0
