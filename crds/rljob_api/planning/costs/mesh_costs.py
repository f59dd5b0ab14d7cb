"""What a mesh and every axis of it cost: what a worker computes and sends in a step, how long it waits, and what it
would have in memory without the axis.

With T tokens of a copy in a step, of hidden size h, queries q and keys k wide, L layers of P parameters, c bytes of a
number, and n ranks of the axis, a forward pass sends of each worker

    cp, by heads    L (2 q + 2 k) c (T / cp) (n - 1) / n         what attention reads, and what it writes
    cp, in a ring   L 2 k c (T / cp) (n - 1)                     keys and values; on the way back gradients, too
    pp              h c (T / cp / tp)                            to the next stage
    tp              L 4 h c (T / cp) (n - 1) / n                 tokens gathered and shared out, twice in a layer
    ep              L 2 chosen h c (T / cp / tp) (n - 1) / n     to the experts, and back
    dp              P c (n - 1) / n                              per micro-batch; gradients once more, reduced

q, k and P are what matrices that are split leave a worker, L and P what pipeline stages do: of the stage that sends
most. A backward pass sends as much again; where ranks split matrices they add up gradients of what each has whole once
in an optimizer step, and so do the first stage and the last of an embedding that is the last layer as well. FSDP shards
over dp and cp together, which counts as dp, and where there is one copy as cp: of a replica, where there are several.
These send gradients alone, once in an optimizer step; of each worker its shard, of b bytes,

    rp              2 b (n - 1) / n                              round a ring, added up, and once more, sums

A backward pass computes twice what a forward pass does. With m micro-batches in an optimizer step, each of which takes
t_1 ... t_p on the stages of a copy, 1F1B (Narayanan et al., https://arxiv.org/abs/2104.04473) takes

    t_1 + ... + t_p + (m - 1) max t

in place of m (t_1 + ... + t_p) / p without stages: (p - 1) / m of the time in vain where they are equal, and what the
slowest has more than the others, such as the last, which makes logits of hidden states.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from rljob_api.memory.model_shape import ModelShape, Shapes
from rljob_api.memory.parallel_layout import ParallelLayout
from rljob_api.pipeline.meshes import AxisCost, AxisWithCost, Mesh, MeshCost, context_way
from rljob_api.planning.memory.layouts import largest_of, packs_of, parallel_layout
from rljob_api.planning.memory.limits import Limits
from rljob_api.planning.memory.workers import memory_of
from rljob_api.planning.plan import EnginePlan, Plan

AXES: tuple[AxisWithCost, ...] = ("dp", "rp", "pp", "cp", "tp", "ep")
"""The slowest first."""


def mesh_costs(plan: Plan, shapes: Shapes, limits: Limits) -> tuple[MeshCost, ...]:
    """Costs of every mesh over which models of known shape are trained or scored."""
    result: dict[tuple[str, Mesh], list[EnginePlan]] = {}
    for engine in plan.engines:
        if engine.kind == "Train":
            result.setdefault((engine.group, engine.mesh), []).append(engine)
    return tuple(
        MeshCost(
            group=group,
            mesh=mesh,
            operations=sum(operations_of(plan, engine, shapes[engine.path]) for engine in engines),
            axes=tuple(_axes(plan, engines, shapes, limits)),
        )
        for (group, mesh), engines in result.items()
        if all(engine.path in shapes for engine in engines)
    )


def _axes(plan: Plan, engines: list[EnginePlan], shapes: Shapes, limits: Limits) -> Iterator[AxisCost]:
    mesh, per_host = engines[0].mesh, plan.group(engines[0].group).workers_per_host
    pipeline_stages, together = largest_of(mesh.pp, [shapes[engine.path] for engine in engines]), mesh.tp * mesh.cp
    sent = [[_sent(plan, engine, shapes, stage) for engine in engines] for stage in pipeline_stages]
    spans = {"dp": mesh.ranks_per_replica, "rp": mesh.size, "pp": mesh.ranks_per_copy, "cp": together}
    spans |= {"tp": mesh.tp, "ep": mesh.ranks_per_experts}
    for axis in AXES:
        if getattr(mesh, axis) > 1:
            ways = [context_way(shapes[engine.path].key_heads, mesh) for engine in engines]
            yield AxisCost(
                axis=axis,
                way=None if axis != "cp" else "Ring" if "Ring" in ways else "Heads",
                crosses_hosts=per_host % spans[axis] > 0,
                sent=max(sum(item[axis] for item in of_stage) for of_stage in sent),
                without=None if axis == "dp" else _without(axis, plan, engines, shapes, limits),
                waits=pipeline_wait(plan, engines, shapes) if axis == "pp" else None,
            )


def _without(axis: str, plan: Plan, engines: list[EnginePlan], shapes: Shapes, limits: Limits) -> int:
    """The peak of a worker that trains, with one rank on this axis and more copies."""
    mesh = engines[0].mesh
    more = 1 if axis in ("ep", "rp") else getattr(mesh, axis)  # which reuse ranks of the others
    other = mesh.model_copy(update={axis: 1, "dp": mesh.dp * more})
    changed = [engine.model_copy(update={"mesh": other}) if engine in engines else engine for engine in plan.engines]
    memory = memory_of(plan.model_copy(update={"engines": tuple(changed)}), shapes, limits)
    (group,) = (item for item in memory if item.group == engines[0].group)
    return max(phase.peak for phase in group.phases if phase.phase == "train")


def _sent(plan: Plan, engine: EnginePlan, shapes: Shapes, pipeline_stage: int) -> dict[str, int]:
    """Bytes that a worker of a pipeline stage sends in a step, by axis; over `pp` one that sends both ways."""
    mesh, layout = engine.mesh, parallel_layout(plan, engine, shapes[engine.path], pipeline_stage)
    asked, backwards = model_passes(plan, engine)
    forwards = asked + backwards * engine.recomputes
    tokens = ceil(plan.spec.num_rows / mesh.dp) * plan.spec.longest_row / mesh.cp
    shards, is_copy = _over_shards(plan, engine, layout, asked, backwards), mesh.dp == mesh.rp
    way = context_way(shapes[engine.path].key_heads, mesh)
    sent = {
        "dp": 0 if is_copy else shards,
        "rp": _over_replicas(plan, mesh, layout, backwards),
        "pp": _over_pipeline_stages(plan, mesh, layout, tokens, asked, backwards),
        "cp": _over_context(mesh, layout, tokens, forwards, backwards, way) + (shards if is_copy else 0),
        "tp": _over_tensor_parallel(plan, engine, layout, tokens * (forwards + backwards), backwards > 0),
        "ep": _over_experts(mesh, layout, tokens / mesh.tp * (forwards + backwards)),
    }
    return {axis: ceil(size) for axis, size in sent.items()}


def _over_pipeline_stages(
    plan: Plan, mesh: Mesh, layout: ParallelLayout, tokens: float, forwards: int, backwards: int
) -> float:
    """The first sends forwards and the last backwards, and those between both."""
    shape = layout.shape
    one = tokens / mesh.tp * shape.hidden * layout.computed
    is_shared = shape.tied and shape.has_words and backwards
    embedding = plan.spec.num_optimizer_steps * shape.embedding / layout.ranks * layout.stored if is_shared else 0
    return max(max(forwards, backwards) * one + embedding, (forwards + backwards) * one if mesh.pp > 2 else 0)


def _over_context(mesh: Mesh, layout: ParallelLayout, tokens: float, forwards: int, backwards: int, way: str) -> float:
    shape, ranks = layout.shape, mesh.cp
    if way == "Heads":
        width = 2 * (shape.query_width + shape.key_width) * (ranks - 1) / ranks
        return (forwards + backwards) * shape.layers * tokens * width * layout.computed
    block = shape.layers * tokens * 2 * shape.key_width
    gradients = backwards * ranks * block * max(layout.computed, 4)
    return (forwards + backwards) * (ranks - 1) * block * layout.computed + gradients


def _over_tensor_parallel(
    plan: Plan, engine: EnginePlan, layout: ParallelLayout, tokens: float, is_trained: bool
) -> float:
    """tokens: over all passes."""
    shape, ranks = layout.shape, engine.mesh.tp
    part = (ranks - 1) / ranks
    gradients = plan.spec.num_optimizer_steps * 2 * shape.rest / layout.ranks * layout.stored if is_trained else 0
    return part * (shape.layers * tokens * 4 * shape.hidden * layout.computed + gradients)


def _over_experts(mesh: Mesh, layout: ParallelLayout, tokens: float) -> float:
    """tokens: over all passes."""
    shape, experts = layout.shape, layout.shape.experts
    if experts is None:
        return 0
    visits = (shape.layers - experts.dense_layers) * tokens * experts.chosen * 2
    return visits * shape.hidden * layout.computed * (mesh.ep - 1) / mesh.ep


def _over_replicas(plan: Plan, mesh: Mesh, layout: ParallelLayout, backwards: int) -> float:
    """Gradients of a worker's shard are added up once in an optimizer step, as a ring does it."""
    steps = backwards * plan.spec.num_mini_batches
    return steps * 2 * layout.own_trained * (mesh.rp - 1) / mesh.rp


def _over_shards(plan: Plan, engine: EnginePlan, layout: ParallelLayout, asked: int, backwards: int) -> float:
    """Weights on a CPU stay whole for a mini-batch where they are small, and so do gradients anywhere."""
    mini_batches, (all_tokens, pack) = plan.spec.num_mini_batches, packs_of(plan, engine)
    packs = mini_batches * ceil(all_tokens / pack)
    gathered = mini_batches * asked if layout.on_cpu and layout.is_held else packs * (asked + backwards)
    reduced = backwards * (mini_batches if layout.is_held else packs)
    numbers = layout.parameters_here * (layout.ranks - 1) / layout.ranks
    trained = numbers * layout.trained / layout.whole
    return gathered * numbers * layout.computed + reduced * trained * layout.stored


def model_passes(plan: Plan, engine: EnginePlan) -> tuple[int, int]:
    """Forward passes over all tokens of a step, except those that are computed again, and backward passes."""
    runs = [stage.run for stage in plan.stages if engine.name in stage.engines]
    updates = sum(run in ("UpdatePolicy", "UpdateCritic") for run in runs)
    learnt = updates * plan.spec.algorithm.update_epochs
    return len(runs) - updates + learnt, learnt if engine.trainable else 0


def operations_of(plan: Plan, engine: EnginePlan, shape: ModelShape) -> float:
    """Floating-point operations of one worker in a step, over all layers of the model."""
    mesh = engine.mesh
    forwards, backwards = model_passes(plan, engine)
    tokens = ceil(plan.spec.num_rows / mesh.dp) * plan.spec.longest_row
    passes = forwards + backwards * (2 + engine.recomputes)
    return tokens * passes * _of_token(plan, engine, shape) / mesh.ranks_per_copy


def pipeline_wait(plan: Plan, engines: list[EnginePlan], shapes: Shapes) -> float:
    """Time in which a worker waits for other stages, by the time in which it computes; of engines of one mesh."""
    computed = [operations_of(plan, engine, shapes[engine.path]) for engine in engines]
    waited = (_waiting(plan, engine, shapes[engine.path]) for engine in engines)
    return sum(part * own for part, own in zip(waited, computed, strict=True)) / sum(computed)


def _waiting(plan: Plan, engine: EnginePlan, shape: ModelShape) -> float:
    """Micro-batches are taken to be those of an optimizer step, whatever is done with them."""
    all_tokens, pack = packs_of(plan, engine)
    micro_batches, num_pipeline_stages = ceil(all_tokens / pack), engine.mesh.pp
    times = [
        _of_token(plan, engine, shape.stage(pipeline_stage, num_pipeline_stages))
        for pipeline_stage in range(num_pipeline_stages)
    ]
    return (sum(times) + (micro_batches - 1) * max(times)) * num_pipeline_stages / (micro_batches * sum(times)) - 1


def _of_token(plan: Plan, engine: EnginePlan, shape: ModelShape) -> float:
    """Operations of a forward pass; a token sees half of the longest row on average."""
    return shape.operations(plan.spec.longest_row / 2, predicts=not plan.has_value_head(engine))
