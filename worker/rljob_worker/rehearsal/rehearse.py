"""The rehearsal of a job: what it asks for, looked at where it is."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.vocabulary.problem import Problem
from rljob_worker.rehearsal.finding import Finding, Findings
from rljob_worker.rehearsal.imports import IMPORT_SECONDS, Imports
from rljob_worker.rehearsal.model_files import model_findings
from rljob_worker.rehearsal.prompts import glance_at_data
from rljob_worker.rehearsal.references import references_of, without_column


def rehearse(
    spec: RLJobSpec,
    folder: Path,
    environment: Mapping[str, str],
    *,
    looks_at_data: bool = True,
    import_seconds: float = IMPORT_SECONDS,
) -> Findings:
    """Everything that would end a job whose fields are right. Relative paths begin at `folder`.

    environment: of a worker, in which the user's modules are imported.   looks_at_data: False leaves out data and
    tokenizer, for a machine that does not have them.
    """
    with contextlib.closing(Imports(references_of(spec), environment, import_seconds)) as imports:
        found = [_no_column(path) for path in without_column(spec)]
        found += model_findings(spec, folder)
        unseen: list[str] = []
        if looks_at_data:
            glance = glance_at_data(spec, folder)
            found += glance.found
            unseen = glance.unseen
        else:
            unseen.append("the data, as --no-data says")
        return Findings((*_once(found), *imports.findings()), tuple(unseen))


def _no_column(path: str) -> Finding:
    message = "this reward compares the response with a column of the data, and none is named"
    return Finding(Problem(path, "", message, "Write column: and the name of the column that holds the right answer."))


def _once(found: list[Finding]) -> list[Finding]:
    """Two rooms may meet the same damaged file."""
    return list(dict.fromkeys(found))
