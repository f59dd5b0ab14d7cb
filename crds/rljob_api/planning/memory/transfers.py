"""What one worker has of weights on their way to those that generate: bytes."""

from __future__ import annotations

from math import ceil

from rljob_api.memory.sizes import NUMBER_BYTES
from rljob_api.memory.weight_slices import slice_parameters
from rljob_api.planning.memory.models import WorkerModels
from rljob_api.planning.memory.towers import tower_bytes
from rljob_api.planning.plan import EnginePlan
from rljob_api.planning.weights.flows import BROADCAST_BYTES, WINDOW, WeightFlow, slot_bytes, weight_flows
from rljob_api.planning.weights.staging import stageable_flows


def delta_bytes(models: WorkerModels) -> int:
    """What is kept of the last version of each model, in which changes are found or applied, on CPUs."""
    if not models.on_cpu or models.plan.spec.weight_sync.delta is None:
        return 0
    return sum(_last_version(models, flow) for flow in weight_flows(models.plan))


def _last_version(models: WorkerModels, flow: WeightFlow) -> int:
    """Bytes kept of the last version of a model that is sent as changes: a source keeps every n-th bucket, a worker
    that generates its slice."""
    if not any(group.name == models.group.name for group in (flow.source, *flow.targets)):
        return 0  # the shape of its model may not be at hand
    engine = next(engine for engine in models.plan.engines if engine.model == flow.model)
    whole, bucket = models.whole(engine), models.bucket(engine)
    if flow.source.name == models.group.name:
        return min(whole, ceil(ceil(whole / bucket) / len(flow.source_ranks)) * bucket)
    return slice_parameters(models.shapes[engine.path], flow.tensor) * NUMBER_BYTES[models.plan.precision]


def next_slices_bytes(models: WorkerModels) -> int:
    """Bytes that this worker takes of a version of every model that it may take ahead of its use."""
    if models.plan.spec.weight_sync.staging == "Host":
        return 0
    tensor = {flow.model: flow.tensor for flow in stageable_flows(models.plan, models.group.name)}
    return sum(
        slice_parameters(models.shapes[engine.path], tensor[engine.model]) * NUMBER_BYTES[models.plan.precision]
        + tower_bytes(models, engine)
        for engine in models.generating
        if engine.model in tensor
    )


def sent_bytes(models: WorkerModels, engine: EnginePlan) -> int:
    """What an engine has of new weights while they go from trainer to rollout, beyond the weights themselves, in the
    memory in which it computes."""
    if engine.kind == "Rollout":
        here = (flow for flow in models.flows_of(engine) if models.on_cpu or flow.transport == "Collective")
        return max((_received(models, flow, engine) for flow in here), default=0)
    broadcasts = any(flow.transport == "Collective" for flow in models.flows_of(engine))
    return _gathered(models, engine) + broadcasts * min(WINDOW * BROADCAST_BYTES, models.whole(engine))


def _gathered(models: WorkerModels, engine: EnginePlan) -> int:
    """A bucket, and the parts of it that ranks give; where a worker has the model whole, a tensor that becomes
    another, and the one before it."""
    if engine.mesh.ranks_per_copy * engine.mesh.shards > 1:
        return 2 * models.bucket(engine)
    layout = models.layout(engine)
    is_sent_as_it_is = engine.adapter is None and layout.stored == layout.computed
    return 0 if is_sent_as_it_is else 2 * models.tensor(engine)


def received_on_host(models: WorkerModels, engine: EnginePlan) -> int:
    """What an accelerator's worker has of them in the memory of its host: what comes through data buffers."""
    flows = () if models.on_cpu or engine.kind != "Rollout" else models.flows_of(engine)
    return max((_received(models, flow, engine) for flow in flows if flow.transport == "DataBuffer"), default=0)


def _received(models: WorkerModels, flow: WeightFlow, engine: EnginePlan) -> int:
    """Chunks on their way to this device, and the parts of tensors that are put together of several of them: one of
    each source, whose chunks come one behind the other."""
    is_broadcast = flow.transport == "Collective"
    size = BROADCAST_BYTES if is_broadcast else slot_bytes(models.plan) or BROADCAST_BYTES
    shape, width = models.shapes[engine.path], NUMBER_BYTES[models.plan.precision]
    largest = (ceil(number * width / flow.tensor) for number in shape.largest_sent(len(flow.source_ranks)))
    slots = min(WINDOW * size, models.whole(engine)) if is_broadcast else 0
    return slots + sum(item for item in largest if item > size)
