"""The rehearsal of a job: what it asks for, looked at where it is."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.vocabulary.problem import Problem
from rljob_worker.rehearsal.finding import Finding, Findings
from rljob_worker.rehearsal.functions.imports import IMPORT_SECONDS, Imports
from rljob_worker.rehearsal.functions.references import references_of, without_column
from rljob_worker.rehearsal.inputs.input_check import check_inputs
from rljob_worker.rehearsal.inputs.model_files import beginning_findings, misplaced, model_findings, models_here
from rljob_worker.rehearsal.inputs.remote_check import LOOK_SECONDS, check_remote_inputs
from rljob_worker.rehearsal.inputs.remote_paths import is_at_hand, remote_paths

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
    with contextlib.closing(Imports(references_of(spec), environment, import_seconds)) as imports:
        if looks_at_data:
            seen = _seen(spec, folder, environment, look_seconds)
        else:
            seen = Findings(tuple(model_findings(spec, dict(models_here(spec, folder)))), (_NO_DATA,))
        result = [*(_no_column(path) for path in without_column(spec)), *misplaced(spec, folder)]
        result += [*beginning_findings(spec, folder), *seen.found]
        return Findings((*_once(result), *imports.findings()), seen.unseen, seen.lacking)


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
