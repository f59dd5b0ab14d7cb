"""A supervisor of fake pods: `run_process.py RUN_DIR OPTIONS`, OPTIONS being JSON.

script       what the workers do (see fake_worker.py)
groups       [[name, replicas, workers per pod], ...]
generators   pods of an elastic group `rollout`; without it, there is no such group
maxRestarts  restarts on exit code 75 or death by signal
tls          whether data buffers get certificates
spill        the directory of their spill files
resume       what the first attempt starts from
bufferCode   data buffers exit with this at once
services     what the job's services do (see fake_services.py); without it, there are none
"""

import json
import sys
from pathlib import Path

from rljob_worker.launcher.tests import fake_worker
from rljob_worker.launcher.tests.quick_launcher import QUICK_SECONDS
from rljob_worker.local.pods import pods
from rljob_worker.local.pods.pods import Commands
from rljob_worker.rundir.directory import RunDirectory, RunLock
from rljob_worker.supervision import gang as hosts_gang
from rljob_worker.supervision.hosts import client
from rljob_worker.supervision.one_host import local_gangs
from rljob_worker.supervision.supervisor import Launch, Supervisor
from rljob_worker.supervision.tests import fake_buffer, fake_services
from rljob_worker.tests.documents import plan_of


class PrintingView:
    def __init__(self):
        self.shown = ""

    def note(self, note):
        shown = f"phase {note.phase} attempt {note.attempt}"
        if shown != self.shown:
            print(shown, flush=True)
        self.shown = shown

    def say(self, text):
        print(text, flush=True)

    def tick(self):
        pass


def main(run_dir, options_text):
    options = json.loads(options_text)
    directory = RunDirectory(Path(run_dir))
    directory.prepare()
    policy = {"maxRestarts": options.get("maxRestarts", 0)}
    spill = {"spill": {"limit": "1Mi", "directory": options["spill"]}} if "spill" in options else {}
    plan = plan_of(
        directory.name,
        groups=options.get("groups", ()),
        **elastic(options.get("generators")),
        failurePolicy=policy,
        dataBuffer={"tls": options.get("tls", False)} | spill,
        services=[{"name": "judge", "run": "mine:app"}] if "services" in options else [],
    )
    directory.write(directory.plan, plan.canonical_json())
    launch = Launch(directory, plan, options.get("resume", "never"))
    with (
        RunLock(directory.lock),
        local_gangs(directory, plan, Path(run_dir).parent, commands(options), options.get("generators", 0)) as gangs,
    ):
        note = Supervisor(launch, PrintingView(), gangs).run()
    print(f"end {note.phase} {note.exit_code} restarts {note.restarts}: {note.cause}")
    return note.exit_code


def elastic(num_generators):
    """The fields of a job with an elastic group beside a trainer."""
    if num_generators is None:
        return {}
    groups = [{"name": "train"}, {"name": "rollout", "elastic": {"min": 1, "max": num_generators + 1}}]
    return {"workerGroups": groups, "rollout": {"maxStaleness": 1}}


def commands(options):
    """Pods of fakes, whose supervisor waits for others as shortly as their launchers do."""
    pods.GANG_SETTLE_SECONDS = hosts_gang.GANG_SETTLE_SECONDS = 2 * QUICK_SECONDS
    client.RETRY_SECONDS = 0.1
    python = sys.executable
    buffer = [str(options["buffer"])] if "buffer" in options else []
    worker = (python, fake_worker.__file__, json.dumps(options.get("script", {})))
    return Commands(
        buffer=(python, fake_buffer.__file__, *buffer),
        launcher=(python, "-m", "rljob_worker.launcher.tests.quick_launcher", "--", *worker),
        services=(python, fake_services.__file__, options.get("services", "")),
        forks=False,
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
