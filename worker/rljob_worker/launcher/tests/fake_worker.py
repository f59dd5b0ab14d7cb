"""A worker that plays a script: `fake_worker.py '{"0": [["report", {...}, {...}], ["exit", 65]], "*": [["hang"]]}'`.

Keys are an attempt (`attempt-2`), a pod (`train-1`), a local rank, or `*`; the first that fits counts. After its last
line a worker exits 0.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rljob_worker.metrics.lines import LinesFile
from rljob_worker.metrics.reporter import Reporter
from rljob_worker.process.last_words import LastWords, write_last_words

SLEEPER = "import time; time.sleep(600)"


class FakeWorker:
    def __init__(self) -> None:
        self.reporter = Reporter.from_environment()

    def report(self, metrics, progress=None):
        self.reporter.send(metrics, progress)

    def words(self, **words):
        write_last_words(LastWords(**words))

    def say(self, text):
        print(text, flush=True)

    def grandchild(self, pid_file, own_session=False):
        process = subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=own_session)
        write_whole(pid_file, str(process.pid))

    def metrics(self, record, skew_seconds=0):
        """On storage whose clock differs by `skew_seconds`."""
        beside = run_dir() / f"metrics.{os.getpid()}"
        lines = LinesFile(beside)
        lines.write([record])
        lines.close()
        shown = time.time() + skew_seconds
        os.utime(beside, (shown, shown))
        beside.rename(run_dir() / "metrics.jsonl")

    def open_metrics(self):
        """As the lead does before it loads a model."""
        (run_dir() / "metrics.jsonl").touch()

    def checkpoint(self, step):
        # most scripts have no use for the quarter of a second that these take
        from rljob_worker.checkpoint.manifest import MANIFEST, Manifest, directory_name
        from rljob_worker.rundir.ownership import Owner

        attempt = int(os.environ["RLJOB_ATTEMPT"])
        directory = run_dir() / "checkpoints" / directory_name(step, Owner(attempt))
        directory.mkdir()
        (directory / MANIFEST).write_text(
            Manifest(step=step, attempt=attempt, plan_hash="hash", score=None, files={}).to_json()
        )

    def say_environment(self, name):
        print(f"{name}={os.environ.get(name)}", flush=True)

    def list_files(self, name):
        """Print the files of the directory in a variable, and of its parent."""
        place = Path(os.environ[name])
        for item in (place, place.parent):
            files = " ".join(sorted(path.name for path in item.iterdir()))
            print(f"{item.relative_to(place.parent.parent)}: {files}", flush=True)

    def pid(self, pid_file):
        write_whole(pid_file, str(os.getpid()))

    def block(self, signum):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signum])

    def wait_signal(self, *numbers):
        signal.sigwait(numbers)

    def wait_file(self, path):
        while not Path(path).exists():
            time.sleep(0.01)

    def wait_log(self, worker):
        """Until another worker of this attempt has said something."""
        path = run_dir() / "logs" / f"attempt-{os.environ['RLJOB_ATTEMPT']}" / f"worker-{worker}.log"
        while not path.exists() or not path.stat().st_size:
            time.sleep(0.01)

    def hang(self):
        while True:
            time.sleep(600)

    def die(self, signum):
        os.kill(os.getpid(), signum)

    def exit(self, code):
        sys.exit(code)


def write_whole(path, text):
    """Readers poll for the file: it must not be seen half-written."""
    partial = Path(f"{path}.partial")
    partial.write_text(text)
    partial.rename(path)


def run_dir():
    return Path(os.environ["RLJOB_RUN_DIR"])


def lines_for(script, environment):
    pod = f"{environment.get('RLJOB_GROUP')}-{environment.get('RLJOB_HOST_INDEX')}"
    for key in (f"attempt-{environment.get('RLJOB_ATTEMPT')}", pod, environment["RLJOB_LOCAL_RANK"], "*"):
        if key in script:
            return script[key]
    return []


def main():
    lines = lines_for(json.loads(sys.argv[1]), os.environ)
    worker = FakeWorker()
    for verb, *arguments in lines:
        if arguments and isinstance(arguments[0], dict) and verb == "words":
            worker.words(**arguments[0])
        else:
            getattr(worker, verb)(*arguments)


if __name__ == "__main__":
    main()
