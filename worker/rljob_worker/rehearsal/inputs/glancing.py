"""`python -m rljob_worker.rehearsal.inputs.glancing`: the look at a job's data and models, stores and the hub included.

Standard input holds the spec and the folder where paths begin, standard output what was found.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.rehearsal.inputs.far import to_json
from rljob_worker.rehearsal.inputs.glance import glance_at


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
