"""From YAML text, or from a Kubernetes object, to an `RLJob` that can run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rljob_api.catalogue import profiles as built_in_profiles
from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.checks.validation import problems_of
from rljob_api.loading.document import Document, depth_problem, read_document
from rljob_api.loading.overrides import apply_overrides, written_by
from rljob_api.loading.structure import check_structure
from rljob_api.v1alpha1 import RLJob
from rljob_api.vocabulary.problem import InvalidJobError, Problem

Profiles = Mapping[str, AcceleratorProfile]

_USER_METADATA = ("name", "namespace", "labels", "annotations")

_RECOMPUTES = "activationCheckpointing"
"""Was true or false, and is None, Full or Auto in training.memory."""


def parse_job(text: str, overrides: Iterable[str] = (), profiles: Profiles = built_in_profiles.DEFAULT) -> RLJob:
    """The job of a YAML text, with `--set` overrides applied.  Raises InvalidJobError with every problem at once."""
    job, problems = read_job(text, overrides, profiles)
    if problems or job is None:
        raise InvalidJobError(problems)
    return job


def read_job(
    text: str, overrides: Iterable[str] = (), profiles: Profiles = built_in_profiles.DEFAULT
) -> tuple[RLJob | None, list[Problem]]:
    """The job of a YAML text with every problem of it. With problems it is what was probably meant, which can still be
    looked at; None where that cannot be guessed."""
    document, overrides = read_document(text), tuple(overrides)
    if document.value is None:
        return None, [*document.problems] or [_EMPTY]
    data, problems = apply_overrides(document.value, overrides)
    job, result = _check(data, profiles)
    return job, [*document.problems, *problems, *(with_source(item, document, overrides) for item in result)]


def job_from_object(body: Mapping[str, Any], profiles: Profiles = built_in_profiles.DEFAULT) -> RLJob:
    """The job of an object as the API server returns it; status and server-set metadata are left out.

    Raises InvalidJobError with every problem at once.
    """
    metadata = {key: body["metadata"][key] for key in _USER_METADATA if key in body["metadata"]}
    data = {**{key: value for key, value in body.items() if key != "status"}, "metadata": metadata}
    if (result := depth_problem(data)) is not None:
        raise InvalidJobError([result])
    job, problems = _check(data, profiles)
    if problems or job is None:
        raise InvalidJobError(problems)
    return job


def _check(data: Any, profiles: Profiles) -> tuple[RLJob | None, list[Problem]]:
    """Problems of fields, then of what they say together; the latter not where the former already speak."""
    job, problems = check_structure(data)
    if job is None:
        return None, problems
    paths = tuple(problem.path for problem in problems)
    return job, problems + [
        problem for problem in problems_of(job, profiles) if not problem.path.startswith(paths or ("\n",))
    ]


def with_source(problem: Problem, document: Document, overrides: Sequence[str]) -> Problem:
    """The problem with who wrote what it is about: the line of the document, or the override."""
    override = written_by(problem.path, overrides, document.lines)
    return replace(problem, override=override, line=problem.line or document.line_of(problem.path))


_EMPTY = Problem("", "", "the file is empty", "Write apiVersion, kind, metadata and spec; see rljob new.")


def with_current_names(job: Any) -> Any:
    """A document that may be a job as an earlier version wrote it, with every field that has moved at its
    place of today.

    For what a version before left behind, such as the job of a run. A job that a person writes has today's names.
    """
    spec = job.get("spec") if isinstance(job, Mapping) else None
    if not isinstance(spec, Mapping):
        return job
    training = spec.get("training")
    if not isinstance(training, Mapping) or _RECOMPUTES not in training:
        return job
    kept = {name: value for name, value in training.items() if name != _RECOMPUTES}
    memory = {_RECOMPUTES: "Full" if training[_RECOMPUTES] else "None", **(kept.get("memory") or {})}
    return {**job, "spec": {**spec, "training": {**kept, "memory": memory}}}
