"""`python -m rljob_worker.rehearsal`: the rehearsal of a pod before its workers start; 0, or the code of its end.

Standard output says everything that was found. Paths begin at the current folder, as those of workers do.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

from rljob_api.planning.plan import Plan
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.problem import InvalidJobError
from rljob_worker.rehearsal.machine.tools import tool_findings
from rljob_worker.rehearsal.rehearse import rehearse


def main() -> int:
    plan = Plan.model_validate_json(Path(os.environ[keys.ENV_PLAN]).read_bytes())
    try:
        findings = rehearse(plan.spec, Path.cwd(), os.environ)
        replace(
            findings, found=(*findings.found, *tool_findings(plan, {os.environ[keys.ENV_GROUP]}, os.environ))
        ).raise_found()
    except InvalidJobError as error:
        print(error)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
