"""Whether models can do what a job asks of them: with experts or without, and with their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rljob_api.checks.subject import problem
from rljob_api.memory.model_shape import ModelShape
from rljob_api.planning.plan import EnginePlan, Plan
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.vocabulary.problem import Problem


def ability_problems(plan: Plan, shapes: Mapping[str, ModelShape]) -> Iterator[Problem]:
    """Each once, of all engines whose models are known."""
    found: list[Problem] = []
    for engine in plan.engines:
        shape = shapes.get(engine.path)
        if shape is not None:
            found += _of_tokens(plan.spec, engine, shape) if engine.kind == "Rollout" else ()
            found += _without_experts(plan, engine) if shape.experts is None else _with_experts(plan.spec, engine)
    yield from dict.fromkeys(found)


def _without_experts(plan: Plan, engine: EnginePlan) -> Iterator[Problem]:
    coefficient = plan.spec.training.router_aux_loss_coefficient
    if coefficient and engine.trainable and not plan.has_value_head(engine):
        message = f"this is for models with experts, and {engine.path} has none"
        yield problem("spec.training.routerAuxLossCoefficient", coefficient, message, "Leave it out.")


def _with_experts(spec: RLJobSpec, engine: EnginePlan) -> Iterator[Problem]:
    if engine.adapter is not None:
        place = next(i for i, model in enumerate(spec.models) if model.adapter is not None)
        message = f"adapters of models with experts are not built yet, and {engine.path} has experts"
        yield problem(f"spec.models[{place}].adapter", {"rank": engine.adapter.rank}, message, "Leave it out.")
    if spec.training.compile and engine.kind == "Train":
        message = f"models with experts, as {engine.path}, are not compiled: every pass sends its experts other numbers"
        yield problem("spec.training.compile", True, f"{message} of tokens", "Write false.")
    recorded = spec.rollout.engine_options.enforce_eager is False
    if recorded and engine.kind == "Rollout" and engine.library == "Transformers":
        message = f"steps of a model with experts, as {engine.path}, are not recorded, since each computes others"
        yield problem("spec.rollout.engineOptions.enforceEager", False, message, "Leave it out.")


def _of_tokens(spec: RLJobSpec, engine: EnginePlan, shape: ModelShape) -> Iterator[Problem]:
    for i, token in enumerate(spec.rollout.stop_token_ids):
        if token >= shape.vocabulary:
            message = f"the tokens of {engine.path} are 0 to {shape.vocabulary - 1}"
            yield problem(f"spec.rollout.stopTokenIds[{i}]", token, message, "Write one of them, or leave it out.")
