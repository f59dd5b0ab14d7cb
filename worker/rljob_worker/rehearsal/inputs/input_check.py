"""One look at a job's models and data, wherever they are.

`python -m rljob_worker.rehearsal.inputs.input_check` looks at stores and the hub, too: standard input holds the spec
and the folder where paths begin, standard output what was found.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.errors import NotHere, RLJobError
from rljob_worker.rehearsal.finding import Finding, Findings, finding_of
from rljob_worker.rehearsal.inputs.fetched_models import fetched_model
from rljob_worker.rehearsal.inputs.model_files import model_findings, models_here
from rljob_worker.rehearsal.inputs.prompts import InputCheck, check_data
from rljob_worker.rehearsal.inputs.remote_check import findings_to_json
from rljob_worker.rehearsal.inputs.remote_paths import is_at_hand, model_paths, whereabouts


def check_inputs(
    spec: RLJobSpec, folder: Path, environment: Mapping[str, str] | None = None, scratch: Path | None = None
) -> Findings:
    """The files of models, and the first rows of the data as prompts.

    environment: what opens stores and the hub; without it only what is here is looked at.   scratch: an empty folder
    for the small files of models that are elsewhere.
    """
    check = InputCheck(environment or {})
    models = dict(models_here(spec, folder))
    fetched = {} if scratch is None else _fetched(spec, models, scratch, check)
    models |= fetched
    _note_tokenizer(spec, models, check)
    check.found += model_findings(spec, models)
    check_data(spec, folder, models, check)
    result = tuple(_by_their_names(item, fetched) for item in check.found)
    return Findings(result, tuple(check.unseen), tuple(check.lacking), tuple(check.warned), tuple(check.rows))


def _fetched(spec: RLJobSpec, here: Mapping[str, Path], scratch: Path, check: InputCheck) -> dict[str, Path]:
    """Each model that is elsewhere and can be seen from here."""
    result: dict[str, Path] = {}
    for field, path in model_paths(spec):
        if path in here or path in result or not is_at_hand(path, check.environment):
            continue
        try:
            result[path] = fetched_model(path, scratch)
        except NotHere as error:
            check.lacking.append(finding_of(field, error))
        except RLJobError as error:
            check.note(field, error)
    return result


def _note_tokenizer(spec: RLJobSpec, models: Mapping[str, Path], check: InputCheck) -> None:
    for model in spec.models:
        if model.name in spec.policies and model.path not in models and not is_at_hand(model.path, check.environment):
            check.unseen.append(f"the tokenizer of {model.path}, which is {whereabouts(model.path)}")


def _by_their_names(finding: Finding, fetched: Mapping[str, Path]) -> Finding:
    """Files that were fetched are named by where they are from."""
    message = finding.problem.message
    for path, place in fetched.items():
        message = message.replace(str(place), path)
    return replace(finding, problem=replace(finding.problem, message=message))


def main() -> None:
    question = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spec = RLJobSpec.model_validate_json(json.dumps(question["spec"]))
    with tempfile.TemporaryDirectory() as scratch:
        answers.write(
            json.dumps(findings_to_json(check_inputs(spec, Path(question["folder"]), os.environ, Path(scratch))))
        )
    answers.close()


if __name__ == "__main__":
    main()
