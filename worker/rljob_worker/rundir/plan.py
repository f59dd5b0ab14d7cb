"""The Plan that a run is of, as its file has it."""

from __future__ import annotations

from pydantic import ValidationError

from rljob_api.planning.plan import Plan
from rljob_worker.errors import InvalidJob
from rljob_worker.storage.paths import StoragePath

_NAMED = 5
"""Unknown fields, in a message."""


def read_plan(path: StoragePath) -> Plan:
    """The Plan a planner wrote; a version this worker does not know is refused."""
    try:
        return Plan.model_validate_json(_text(path))
    except ValidationError as error:
        if unknown := [_place(item["loc"]) for item in error.errors() if item["type"] == "extra_forbidden"]:
            raise InvalidJob(
                f"RLJOB_PLAN: {path} was written by another version of rljob: this one does not know "
                f"{', '.join(unknown[:_NAMED])}; take operator and images of one version"
            ) from error
        raise InvalidJob(f"RLJOB_PLAN: {path} is not a plan this worker understands: {error}") from error


def _place(steps: tuple[int | str, ...]) -> str:
    """`spec.rewards[0].onError`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")


def _text(path: StoragePath) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise InvalidJob(f"RLJOB_PLAN: cannot read {path}: {error.strerror}") from error
