"""What a worker computes in a step, and how long it waits for other pipeline stages.

A backward pass takes twice what a forward pass takes. With m micro-batches in an optimizer step, each of which takes
t_1 ... t_p on the stages of a copy, 1F1B (Narayanan et al., https://arxiv.org/abs/2104.04473) takes

    t_1 + ... + t_p + (m - 1) max t

in place of m (t_1 + ... + t_p) / p without stages: (p - 1) / m of the time in vain where they are equal, and what the
slowest has more than the others, such as the last, which makes words of hidden states.
"""

from __future__ import annotations

from math import ceil

from rljob_api.memory.model_shape import ModelShape
from rljob_api.planning.memory import Shapes, packs_of
from rljob_api.planning.plan import EnginePlan, Plan


def passes_of(plan: Plan, engine: EnginePlan) -> tuple[int, int]:
    """Forward passes over all tokens of a step, but for those that are computed again, and backward passes."""
    runs = [stage.run for stage in plan.stages if engine.name in stage.engines]
    updates = sum(run in ("UpdatePolicy", "UpdateCritic") for run in runs)
    learnt = updates * plan.spec.algorithm.update_epochs
    return len(runs) - updates + learnt, learnt if engine.trainable else 0


def operations_of(plan: Plan, engine: EnginePlan, shape: ModelShape) -> float:
    """Of one worker in a step, of the whole of a model."""
    mesh = engine.mesh
    forwards, backwards = passes_of(plan, engine)
    tokens = ceil(plan.spec.num_rows / mesh.dp) * plan.spec.longest_row
    passes = forwards + backwards * (2 + engine.recomputes)
    return tokens * passes * _of_token(plan, engine, shape) / mesh.ranks_per_copy


def waiting(plan: Plan, engines: list[EnginePlan], shapes: Shapes) -> float:
    """Time in which a worker waits for other stages, by the time in which it computes; of engines of one mesh."""
    computed = [operations_of(plan, engine, shapes[engine.path]) for engine in engines]
    waited = (_waiting(plan, engine, shapes[engine.path]) for engine in engines)
    return sum(part * own for part, own in zip(waited, computed, strict=True)) / sum(computed)


def _waiting(plan: Plan, engine: EnginePlan, shape: ModelShape) -> float:
    """Micro-batches are taken to be those of an optimizer step, whatever is done with them."""
    all_tokens, pack = packs_of(plan, engine)
    micro_batches, stages = ceil(all_tokens / pack), engine.mesh.pp
    times = [_of_token(plan, engine, shape.stage(stage, stages)) for stage in range(stages)]
    return (sum(times) + (micro_batches - 1) * max(times)) * stages / (micro_batches * sum(times)) - 1


def _of_token(plan: Plan, engine: EnginePlan, shape: ModelShape) -> float:
    """Operations of a forward pass; a token sees half of the longest row on average."""
    return shape.operations(plan.spec.longest_row / 2, predicts=not plan.has_value_head(engine))
