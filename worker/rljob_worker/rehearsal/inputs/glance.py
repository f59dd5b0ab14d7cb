"""One look at a job's models and data, wherever they are.

`python -m rljob_worker.rehearsal.inputs.glance` looks at stores and the hub, too: standard input holds the spec and the
folder where paths begin, standard output what was found.
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
from rljob_worker.rehearsal.inputs.far import to_json
from rljob_worker.rehearsal.inputs.fetched_models import fetched_model
from rljob_worker.rehearsal.inputs.model_files import model_findings, models_here
from rljob_worker.rehearsal.inputs.prompts import Glance, glance_at_data
from rljob_worker.rehearsal.inputs.reach import is_at_hand, model_paths, whereabouts


def glance_at(
    spec: RLJobSpec, folder: Path, environment: Mapping[str, str] | None = None, scratch: Path | None = None
) -> Findings:
    """The files of models, and the first rows of the data as prompts.

    environment: what opens stores and the hub; without it only what is here is looked at.   scratch: an empty folder
    for the small files of models that are elsewhere.
    """
    glance = Glance(environment or {})
    models = dict(models_here(spec, folder))
    fetched = {} if scratch is None else _fetched(spec, models, scratch, glance)
    models |= fetched
    _note_tokenizer(spec, models, glance)
    glance.found += model_findings(spec, models)
    glance_at_data(spec, folder, models, glance)
    found = tuple(_by_their_names(each, fetched) for each in glance.found)
    return Findings(found, tuple(glance.unseen), tuple(glance.lacking))


def _fetched(spec: RLJobSpec, here: Mapping[str, Path], scratch: Path, glance: Glance) -> dict[str, Path]:
    """Each model that is elsewhere and can be seen from here."""
    found: dict[str, Path] = {}
    for field, path in model_paths(spec):
        if path in here or path in found or not is_at_hand(path, glance.environment):
            continue
        try:
            found[path] = fetched_model(path, scratch)
        except NotHere as error:
            glance.lacking.append(finding_of(field, error))
        except RLJobError as error:
            glance.note(field, error)
    return found


def _note_tokenizer(spec: RLJobSpec, models: Mapping[str, Path], glance: Glance) -> None:
    for model in spec.models:
        if model.name in spec.policies and model.path not in models and not is_at_hand(model.path, glance.environment):
            glance.unseen.append(f"the tokenizer of {model.path}, which is {whereabouts(model.path)}")


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
        answers.write(json.dumps(to_json(glance_at(spec, Path(question["folder"]), os.environ, Path(scratch)))))
    answers.close()


if __name__ == "__main__":
    main()
