"""`rljob` with fake pods: `run_fake_pods.py SCRIPT ARGUMENTS...`; see fake_worker.py for scripts. What a script says of
`services` is what those of the job do (fake_services.py)."""

import json
import sys

from rljob_worker.cli.app import app
from rljob_worker.cli.output import run_and_exit
from rljob_worker.supervision.tests.run_process import commands

if __name__ == "__main__":
    script = json.loads(sys.argv.pop(1))
    run_and_exit(app, commands({"services": script.pop("services", ""), "script": script}))
