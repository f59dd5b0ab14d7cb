"""The rehearsal of a job: what it asks for, looked at where it is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.vocabulary.problem import Problem
from rljob_worker.embodied.simulators.job_pool import require_rendering
from rljob_worker.errors import NotHere
from rljob_worker.rehearsal.finding import Finding, Findings, finding_of
from rljob_worker.rehearsal.functions.imports import IMPORT_SECONDS, Imports
from rljob_worker.rehearsal.functions.reference import FunctionReference
from rljob_worker.rehearsal.functions.references import references_of, without_column
from rljob_worker.rehearsal.functions.trials import judged_rewards, trials_of
from rljob_worker.rehearsal.inputs.beginning import beginning_findings
from rljob_worker.rehearsal.inputs.input_check import check_inputs
from rljob_worker.rehearsal.inputs.model_files import misplaced, model_findings, models_here
from rljob_worker.rehearsal.inputs.remote_check import LOOK_SECONDS, check_remote_inputs
from rljob_worker.rehearsal.inputs.remote_paths import is_at_hand, remote_paths
from rljob_worker.rehearsal.machine.tracker_logins import tracker_findings
from rljob_worker.sandbox.confinement.confine import missing_confinement

_NO_DATA = "the data, as --no-data says"


def rehearse(
    spec: RLJobSpec,
    folder: Path,
    environment: Mapping[str, str],
    *,
    looks_at_data: bool = True,
    import_seconds: float = IMPORT_SECONDS,
    look_seconds: float = LOOK_SECONDS,
) -> Findings:
    """Everything that would end a job whose fields are right. Relative paths begin at `folder`.

    environment: of a worker, in which the user's modules are imported and which opens stores.   looks_at_data: False
    leaves out data and tokenizer, for a machine that does not have them.   look_seconds: for stores and the hub.
    """
    references, unconfined = _importable(references_of(spec))
    with contextlib.closing(Imports(references, environment, import_seconds)) as imports:
        if looks_at_data:
            seen = _seen(spec, folder, environment, look_seconds)
        else:
            seen = Findings(tuple(model_findings(spec, dict(models_here(spec, folder)))), (_NO_DATA,))
        result = [*(_no_column(path) for path in without_column(spec)), *misplaced(spec, folder)]
        result += [*beginning_findings(spec, folder), *tracker_findings(spec.monitoring.trackers, environment)]
        result += seen.found
        called = imports.findings(trials_of(spec, seen.rows))
        failing, doubtful = judged_rewards(spec, imports.outcomes)
        found, warned = (*_once(result), *called, *failing), (*seen.warned, *doubtful)
        lacking = (*seen.lacking, *_undrawn(spec), *imports.lacking)
        return Findings(found, (*seen.unseen, *unconfined), lacking, warned)


def _importable(references: Sequence[FunctionReference]) -> tuple[list[FunctionReference], list[str]]:
    """What may be imported here, and a sentence on functions that ask for a confinement which this machine has not."""
    missing = ", ".join(missing_confinement())
    refused = [item for item in references if missing and item.confinement and item.confinement.mode == "Required"]
    if not refused:
        return list(references), []
    runs = ", ".join(dict.fromkeys(item.run for item in refused))
    return [item for item in references if item not in refused], [f"{runs}: confinement: Required ({missing})"]


def _undrawn(spec: RLJobSpec) -> Iterator[Finding]:
    """Pictures that cannot be drawn here as the job wants them drawn."""
    try:
        if spec.rollout.simulator is not None:
            require_rendering(spec.rollout.simulator)
    except NotHere as error:
        yield finding_of("spec.rollout.simulator.rendering", error)


def _seen(spec: RLJobSpec, folder: Path, environment: Mapping[str, str], look_seconds: float) -> Findings:
    """What is seen of models and data. A store is asked only by those that have credentials."""
    if not any(is_at_hand(path, environment) for path in remote_paths(spec, folder)):
        return check_inputs(spec, folder)
    result = check_remote_inputs(spec, folder, environment, look_seconds)
    if isinstance(result, Findings):
        return result
    here = check_inputs(spec, folder)
    return replace(here, unseen=(*here.unseen, result))


def _no_column(path: str) -> Finding:
    message = "this reward compares the response with a column of the data, and none is named"
    return Finding(Problem(path, "", message, "Write column: and the name of the column that holds the right answer."))


def _once(result: list[Finding]) -> list[Finding]:
    """Two rooms may meet the same damaged file."""
    return list(dict.fromkeys(result))
