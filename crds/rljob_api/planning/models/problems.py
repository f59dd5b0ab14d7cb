"""All that a plan asks of its models and that they cannot do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.memory.model_shape import ModelShape
from rljob_api.planning.models.abilities import ability_problems
from rljob_api.planning.models.positions import position_problems
from rljob_api.planning.models.routing import routing_problems
from rljob_api.planning.models.spreading import spreading_problems
from rljob_api.planning.plan import Plan
from rljob_api.vocabulary.problem import Problem


def model_problems(
    plan: Plan, profiles: Mapping[str, AcceleratorProfile], shapes: Mapping[str, ModelShape]
) -> Iterator[Problem]:
    """shapes: of the models whose configs are at hand, by path."""
    yield from _spreading_problems(plan, shapes)
    yield from position_problems(plan, shapes)
    yield from routing_problems(plan, profiles, shapes)
    yield from ability_problems(plan, shapes)


def _spreading_problems(plan: Plan, shapes: Mapping[str, ModelShape]) -> Iterator[Problem]:
    """Once for each model that is trained or scored, and for each that generates."""
    engines, states = sorted(plan.engines, key=lambda each: each.trainable), plan.spec.training.optimizer.states
    known = {(each.path, each.kind): each for each in engines if each.path in shapes}
    return chain.from_iterable(spreading_problems(each, shapes[each.path], states) for each in known.values())
