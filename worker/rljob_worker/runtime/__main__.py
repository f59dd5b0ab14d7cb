"""`python -m rljob_worker.runtime`: one worker. Started by the launcher, one per accelerator.

The environment is read and checked before torch is imported, so that a wrong one is reported in milliseconds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import traceback

from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.errors import RLJobError
from rljob_worker.process.last_words import LastWords, write_last_words
from rljob_worker.process.stop_requests import release_signals
from rljob_worker.runtime.setup.environment import WorkerEnvironment
from rljob_worker.runtime.status import StopSignal
from rljob_worker.users_code.search_path import add_to_path


def main() -> int:
    """The worker's exit code; its last message says why."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    stop = StopSignal()
    signal.signal(signal.SIGTERM, lambda *_: stop.request())
    signal.signal(signal.SIGINT, lambda *_: stop.request())
    release_signals()
    add_to_path()
    name, said = "", ""
    try:
        environment = WorkerEnvironment.read()
        name = environment.name
        from rljob_worker.runtime.joining import run_worker  # torch comes in here

        words = run_worker(environment, stop)
    except RLJobError as error:
        said = f"worker {name}: {error}\n"
        words = LastWords(int(error.exit_code), cause=str(error), worker=name)
    except Exception as error:
        said = traceback.format_exc()
        words = LastWords(int(ExitCode.BUG), cause=f"{type(error).__name__}: {error}", worker=name)
    report_exit(words, said)
    return words.code


def report_exit(words: LastWords, said: str) -> None:
    """To the log and to the launcher, as far as the disk takes it: when it is full, the exit code still speaks."""
    with contextlib.suppress(OSError):
        write_last_words(words)
    with contextlib.suppress(OSError):
        sys.stderr.write(said)
        sys.stderr.flush()
        sys.stdout.flush()


if __name__ == "__main__":
    code = main()
    # not sys.exit: a library's thread stuck on a lost peer must not keep a dead worker alive
    os._exit(code)
