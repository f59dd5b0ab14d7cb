"""What `rljob run` does where a run exists already: go on, start over, say it is done, or refuse."""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_api.lifetime.changes import Change, resume_changes
from rljob_api.loading.document import read_document
from rljob_api.loading.load import with_current_names
from rljob_api.loading.structure import check_structure
from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.checkpoint.manifest import committed
from rljob_worker.errors import InvalidJob
from rljob_worker.job_paths import with_absolute_paths
from rljob_worker.rundir.directory import RunDirectory
from rljob_worker.storage.files import read_if_there


@dataclass(frozen=True, slots=True)
class Existing:
    """What an earlier run left in a directory."""

    path: str
    spec: RLJobSpec
    phase: str
    steps: tuple[int, ...]
    """Steps of committed checkpoints, ascending."""


@dataclass(frozen=True, slots=True)
class StartFrom:
    """Run from `resume` (what workers get: never, auto or a step)."""

    resume: str
    say: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Nothing is left to do."""

    say: str


def existing_run(directory: RunDirectory) -> Existing | None:
    """What an earlier run left; None where there was none. InvalidJob when its job can no longer be read."""
    text = read_if_there(directory.document)
    if text is None:
        return None
    job, problems = check_structure(with_current_names(read_document(text).value))
    if job is None or problems:
        raise InvalidJob(
            f"{directory.home} holds a run whose job this version does not understand "
            f"({problems[0] if problems else 'it is not an RLJob'}); "
            "give the new run another name (`--set metadata.name=...`)"
        )
    note = directory.read_note()
    spec = with_absolute_paths(job, directory.path).spec
    return Existing(str(directory.home), spec, note.phase if note else "", tuple(checkpoint_steps(directory)))


def checkpoint_steps(directory: RunDirectory) -> list[int]:
    """Steps of committed checkpoints, ascending."""
    return [checkpoint.step for checkpoint in committed(directory.checkpoints)]


def decide_start(wanted: str, spec: RLJobSpec, existing: Existing | None) -> StartFrom | Finished:
    """What follows from `wanted` (auto, never or a step's number); InvalidJob, with the fix, for what cannot be."""
    if wanted not in ("auto", "never") and not wanted.isdecimal():
        raise InvalidJob(f"--resume {wanted} is neither auto, never nor the number of a step; correct it")
    if existing is None:
        if wanted not in ("auto", "never"):
            raise InvalidJob(f"--resume {wanted}: there is no run to go on with; leave --resume out to begin one")
        return StartFrom("never", "")
    if wanted == "never":
        raise InvalidJob(
            f"{existing.path} holds a run already and resume is never; use --resume auto to go on with it, another "
            "name (`--set metadata.name=...`), another --runs-dir, or remove the directory"
        )
    changes = resume_changes(existing.spec, spec)
    if wanted != "auto":
        _check_step(wanted, existing)
        _check_changes(changes, existing)
        return StartFrom(wanted, f"going on from the checkpoint of step {wanted}{_described(changes)}")
    if existing.steps:
        _check_changes(changes, existing)
    if _is_finished(existing, spec):
        return Finished(f"{existing.path} is finished: {existing.steps[-1]} steps; raise stop.steps to train on")
    if not existing.steps:
        return StartFrom("never", f"starting over in {existing.path}: the run there left no checkpoint")
    return StartFrom("auto", f"going on from the checkpoint of step {existing.steps[-1]}{_described(changes)}")


def _is_finished(existing: Existing, spec: RLJobSpec) -> bool:
    """Whether the steps are done; a run that ended early by another stop condition is done until that changes."""
    if not existing.steps:
        return False
    ended_early = existing.phase == "Succeeded" and existing.spec.stop == spec.stop
    return ended_early or existing.steps[-1] >= spec.stop.steps


def _check_step(wanted: str, existing: Existing) -> None:
    if int(wanted) not in existing.steps:
        there = ", ".join(map(str, existing.steps)) or "none"
        raise InvalidJob(f"--resume {wanted}: {existing.path} has no checkpoint of that step; there are: {there}")


def _check_changes(changes: Sequence[Change], existing: Existing) -> None:
    refused = [change for change in changes if not change.allowed]
    if refused:
        lines = "\n".join(
            f"  spec.{change.path}: {short(change.old)} -> {short(change.new)}: {change.refused}" for change in refused
        )
        raise InvalidJob(
            f"{existing.path} cannot go on with this job, because it changes what a run cannot change:\n{lines}\n"
            "Change it back, or give the new run another name (`--set metadata.name=...`)."
        )


def _described(changes: Sequence[Change]) -> str:
    if not changes:
        return ""
    said = ", ".join(f"{change.path} {short(change.old)} -> {short(change.new)}" for change in changes)
    return f", with changes: {said}"


def short(value: object) -> str:
    """A value for one line of text."""
    text = repr(value) if isinstance(value, str | list | dict) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
