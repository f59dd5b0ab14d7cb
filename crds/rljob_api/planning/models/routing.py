"""Whether routes can be replayed: of a model that has experts, through data buffers with room."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.checks.step.memory import check_data_buffer
from rljob_api.checks.subject import Subject, problem
from rljob_api.memory.model_shape import ModelShape
from rljob_api.planning.plan import Plan
from rljob_api.vocabulary.problem import Problem


def routing_problems(
    plan: Plan, profiles: Mapping[str, AcceleratorProfile], shapes: Mapping[str, ModelShape]
) -> Iterator[Problem]:
    """Of every policy that generates."""
    if plan.spec.training.router_replay == "None":
        return
    most = 0
    for path in dict.fromkeys(engine.path for engine in plan.engines if engine.kind == "Rollout"):
        shape = shapes.get(path)
        if shape is not None and shape.experts is None:
            message = f"this is for models with experts, and {path} has none"
            yield problem("spec.training.routerReplay", plan.spec.training.router_replay, message, "Leave it out.")
        elif shape is not None and shape.experts is not None:
            most = max(most, shape.experts.route_bytes(shape.layers))
    if most:
        yield from check_data_buffer(Subject(plan.spec, profiles), most)
