"""`python -m rljob_worker.runtime`: one worker. Started by the launcher, one per accelerator.

The environment is read and checked before torch is imported, so that a wrong one is told in milliseconds.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback

from rljob_api.exit_codes import ExitCode
from rljob_worker.errors import RLJobError
from rljob_worker.launcher.last_words import LastWords, write_last_words
from rljob_worker.runtime.environment import WorkerEnvironment


def main() -> int:
    """The worker's exit code; its last words say why."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    name = ""
    try:
        environment = WorkerEnvironment.read()
        name = environment.name
        from rljob_worker.runtime.worker import run_worker  # torch comes in here

        words = run_worker(environment, stop)
    except RLJobError as error:
        print(f"worker {name}: {error}", file=sys.stderr)
        words = LastWords(int(error.exit_code), cause=str(error), worker=name)
    except Exception as error:
        traceback.print_exc()
        words = LastWords(int(ExitCode.BUG), cause=f"{type(error).__name__}: {error}", worker=name)
    write_last_words(words)
    return words.code


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # not sys.exit: a library's thread stuck on a lost peer must not keep a dead worker alive
    os._exit(code)
