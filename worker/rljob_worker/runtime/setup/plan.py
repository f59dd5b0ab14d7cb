"""The plan as a worker runs it, with the models at hand that whoever planned may not have had: an operator has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rljob_api.planning.plan import Plan
from rljob_api.planning.planner import with_shapes
from rljob_api.planning.weights.staging import stages_on_device
from rljob_api.vocabulary.problem import InvalidJobError
from rljob_api.vocabulary.quantity import format_bytes
from rljob_worker.engines.models.configs import read_json
from rljob_worker.engines.models.sources.mirror import with_mirrors
from rljob_worker.errors import InvalidJob
from rljob_worker.model_shapes import shapes_of
from rljob_worker.process.start_phases import phase


def plan_of_worker(plan: Plan, group: str, cache: Path) -> Plan:
    """Models that are elsewhere at the paths of their mirrors in `cache`, and decided what follows from shapes of
    models that nobody knew. Workers with the same models decide alike. Relative paths begin at the current folder.

    Raises InvalidJob for what does not fit, and as `with_mirrors`.
    """
    with phase("plan") as progress:
        result = with_mirrors(plan, cache)
        if any(memory.unknown for memory in plan.memory):
            try:
                result = with_shapes(result, shapes_of(result.spec, _config))
            except InvalidJobError as error:
                raise InvalidJob(str(error)) from error
        progress.found = ", ".join(_decided(result, group))
    return result


def _config(path: str) -> Mapping[str, Any]:
    """The config.json of a model's directory or of the Hub; empty where it cannot be read."""
    try:
        return read_json(path, "config.json")
    except (OSError, ValueError):  # whoever builds the engine says what is wrong with it
        return {}


def _decided(plan: Plan, group: str) -> Iterator[str]:
    """What the plan says of workers of a group."""
    for memory in plan.memory:
        if memory.group == group and memory.phases:
            most = max(memory.phases, key=lambda item: item.peak)
            room = "" if memory.room is None else f" of {format_bytes(memory.room)}"
            yield f"models take up to {format_bytes(most.peak)}{room} ({most.phase})"
        elif memory.group == group:
            yield f"memory unknown without the shape of {', '.join(memory.unknown)}"
    if any(engine.recomputes for engine in plan.engines if engine.group == group):
        yield "activations are computed again"
    if stages_on_device(plan, group):
        yield "versions of weights wait on the device"
