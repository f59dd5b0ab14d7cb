"""What a library of engines does not compute, refused by name before a model is loaded."""

from __future__ import annotations

from rljob_api.memory.model_shape import parse_shape
from rljob_api.planning.parallelism_problems import parallelism_problems
from rljob_api.planning.plan import EnginePlan, Plan
from rljob_worker.engines.parallel.mesh_ranks import Axis
from rljob_worker.errors import InvalidJob

_SPREADING: dict[Axis, str] = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}


def refuse_unbuilt_parallelism(engine: EnginePlan, *built: Axis) -> None:
    """built: the axes, besides data parallelism, over which the library spreads a model."""
    for axis, name in _SPREADING.items():
        if axis not in built and (size := getattr(engine.mesh, axis)) > 1:
            raise InvalidJob(
                f"engine {engine.name}: {engine.library} does not spread a model over a {name} axis, and the plan has "
                f"{name} {size}; set parallelism.{name} to 1"
            )


def require_shareable(plan: Plan, engine: EnginePlan) -> None:
    """Where the config was at hand, the planner has looked."""
    from rljob_worker.engines.models import model_config

    is_limited = engine.mesh.ranks_per_copy > 1 or engine.mesh.ep > 1 or engine.library == "Megatron"
    shape = parse_shape(model_config(engine.path).to_dict()) if is_limited else None
    states = plan.spec.training.optimizer.states
    for result in () if shape is None else parallelism_problems(engine, shape, states):
        raise InvalidJob(str(result))


def refuse_sight(engine: EnginePlan) -> None:
    from rljob_worker.engines.models import model_config
    from rljob_worker.engines.models.families import VISION_FAMILIES, sees

    if sees(config := model_config(engine.path)):
        raise InvalidJob(
            f"engine {engine.name}: Megatron computes no models that see, and {engine.path!r} is a "
            f"{VISION_FAMILIES[config.model_type]}; write training.engine: FSDP"
        )


def refuse_actions(engine: EnginePlan, what: str, fix: str) -> None:
    from rljob_worker.engines.models import model_config
    from rljob_worker.engines.models.actions import acts

    if acts(config := model_config(engine.path)):
        raise InvalidJob(
            f"engine {engine.name}: {what} no models that act, and {engine.path!r} is one of type "
            f"{config.model_type!r} with action_tokens; {fix}"
        )


def refuse_spread_decisions(engine: EnginePlan) -> None:
    """A pack of decisions attends in both directions, which ranks that share its tokens do not compute."""
    from rljob_worker.engines.models import model_config
    from rljob_worker.engines.models.actions import ACTION_FAMILIES

    if engine.mesh.ranks_per_copy > 1 and (name := ACTION_FAMILIES.get(model_config(engine.path).model_type)):
        raise InvalidJob(
            f"engine {engine.name}: {name} are computed by one rank for a copy, and the plan has "
            f"{engine.mesh.ranks_per_copy}; set all of training.parallelism to 1"
        )
