"""How the models of a plan lie on their ranks, and what these compute at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from math import ceil

from rljob_api.catalogue.columns import computes_full_kl
from rljob_api.catalogue.optimizers import OPTIMIZERS
from rljob_api.memory.model_shape import ModelShape
from rljob_api.memory.parallel_layout import ParallelLayout
from rljob_api.memory.sizes import NUMBER_BYTES
from rljob_api.pipeline.meshes import context_way
from rljob_api.planning.plan import EnginePlan, Plan


def parallel_layout(plan: Plan, engine: EnginePlan, shape: ModelShape, pipeline_stage: int) -> ParallelLayout:
    """How a pipeline stage of an engine that trains or scores keeps its part of a model. shape: of the whole of it."""
    computed, mesh = NUMBER_BYTES[plan.precision], engine.mesh
    ring = context_way(shape.key_heads, mesh) == "Ring"
    if plan.has_value_head(engine):
        shape = replace(shape, has_words=False)
    shape = shape.split(mesh.tp).stage(pipeline_stage, mesh.pp)
    on_cpu, ranks = plan.group(engine.group).device == "cpu", mesh.shards
    optimizer = plan.spec.training.optimizer
    layout = partial(
        ParallelLayout,
        replicas=mesh.rp,
        offload=engine.offload,
        states=optimizer.states,
        num_states=len(OPTIMIZERS[optimizer.name].states),
        ring=ring,
        fuses_norms=plan.group(engine.group).device == "cuda",
        compares_logits=shape.bounded or computes_full_kl(plan.spec),
    )
    if engine.adapter is not None:  # of every linear layer, though the job may name fewer
        adapter = shape.adapter(engine.adapter.rank)
        return layout(shape, ranks, computed, computed, on_cpu, adapter=adapter, tensor=mesh.tp)
    stored = max(computed, 4) if engine.trainable else computed
    return layout(shape, ranks, stored, computed, on_cpu, expert_ranks=mesh.ep, tensor=mesh.tp)


def packs_of(plan: Plan, engine: EnginePlan) -> tuple[int, int]:
    """Most tokens of a copy in one optimizer step, and of them in one pack."""
    spec, mesh = plan.spec, engine.mesh
    all_tokens = ceil(spec.mini_batch_rows / mesh.dp) * spec.longest_row
    return all_tokens, min(max(spec.training.tokens_per_micro_batch * mesh.cp, spec.longest_row), all_tokens)


def largest_of(num_pipeline_stages: int, shapes: Iterable[ModelShape]) -> tuple[int, ...]:
    """The pipeline stages of which one has more than all others: the first, with the embedding and most micro-batches
    on their way, or the last, with what makes logits of hidden states; any, where not all layers have experts."""
    is_uneven = any(shape.experts is not None and shape.experts.dense for shape in shapes)
    return tuple(range(num_pipeline_stages)) if is_uneven else tuple(dict.fromkeys((0, num_pipeline_stages - 1)))
