"""`rljob launch` on several hosts of a test: processes of this machine, or in network namespaces."""

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
from pathlib import Path

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.cli.tests.test_commands import write_job
from rljob_worker.tests.session_root import TEST_MARK
from rljob_worker.tests.waiting import wait_for
from rljob_worker.tests.warm import WarmProcess

FAKE = "rljob_worker.cli.tests.run_fake_pods"
TOKEN = "0123456789abcdef-of-a-test"


def write_wide_job(folder, *, replicas=3, **options):
    """A job of one group with `replicas` pods, and the files it names next to it."""
    data = {"train": [{"path": "some/data"}], "batchSize": replicas}
    write_job(folder, groups=[("train", replicas, 1)], data=data, **options)


class Launched:
    """Launchers by host; everything they start carries a mark."""

    def __init__(self, folder):
        self.folder = folder
        self.processes = {}
        self._own = {TEST_MARK: secrets.token_hex(8)}

    def start(self, host, command, environment, prefix=()):
        """One launcher; its output goes to a file."""
        with self.file(host).open("ab") as output:
            self.processes[host] = subprocess.Popen(
                [*prefix, *command], cwd=self.folder, stdout=output, stderr=output, env=environment | self._own
            )

    def fork(self, host, arguments, environment):
        """One launcher with fake pods, from the warm interpreter: `fake_arguments`."""
        with self.file(host).open("ab") as output:
            self.processes[host] = WarmProcess(
                FAKE,
                *arguments,
                folder=self.folder,
                environment=environment | self._own,
                stdout=output.fileno(),
                stderr=output.fileno(),
            )

    def file(self, host):
        return self.folder / f"output-{host}.txt"

    def said(self, host):
        return self.file(host).read_text() if self.file(host).exists() else ""

    def wait_for(self, condition):
        """Fails when all launchers have ended before that."""

        def is_there():
            result = condition()
            ended = all(process.poll() is not None for process in self.processes.values())
            assert result or not ended, self.everything()
            return result

        return wait_for(is_there, 4 * TEST_TIMEOUT_SECONDS)

    def codes(self, patience_seconds=4 * TEST_TIMEOUT_SECONDS):
        """Exit codes by host, once all have ended and left nobody."""
        result = {host: process.wait(patience_seconds) for host, process in self.processes.items()}
        wait_for(lambda: not self.pids())
        return result

    def pids(self, module=""):
        """Living processes of all hosts whose command names `module`."""
        result = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [pid for pid in result if self._is_ours(pid, module)]

    def everything(self):
        """For the message of a failed assertion."""
        logs = [f"== {path}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.rglob("*.log"))]
        return "\n".join([*(f"== host {host}\n{self.said(host)}" for host in self.processes), *logs])

    def _is_ours(self, pid, module):
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
        ((name, mark),) = self._own.items()
        return f"{name}={mark}".encode() in environment and module.encode() in command


@contextlib.contextmanager
def launching(folder):
    """Nothing outlives the block."""
    launched = Launched(folder)
    try:
        yield launched
    finally:
        for process in launched.processes.values():
            process.kill()
            process.wait()
        for pid in launched.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)


def fake_launch(script, *arguments):
    """`rljob launch job.yaml` whose workers play a script."""
    return [sys.executable, "-m", FAKE, *fake_arguments(script, *arguments)]


def fake_arguments(script, *arguments, file="job.yaml"):
    return [json.dumps(script), "launch", file, "--wait", "60", *arguments]


def environment_of(host, num_hosts, port, **changes):
    """As torchrun and its like leave it, on one machine."""
    place = {"RANK": str(host), "WORLD_SIZE": str(num_hosts), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {**os.environ, **place, "RLJOB_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1", **changes}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
