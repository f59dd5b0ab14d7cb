"""`python -m rljob_worker.local.family.reaper SCRATCH MARK...`: ends a run's processes once the supervisor is gone.

Started first, in a session of its own, so that neither Ctrl-C nor `kill -9` of the supervisor reaches it. Its standard
input is a pipe nobody writes to; the end of the file says that the supervisor is gone, however it went.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence

from rljob_worker.process.family import end_family
from rljob_worker.process.lifeline import ignore_what_means_workers


def start_reaper(scratch: str, marks: Sequence[str]) -> "subprocess.Popen[bytes]":
    """The caller keeps `process.stdin` open as long as the run may live."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__, scratch, *marks],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main(scratch: str, *marks: str) -> int:
    ignore_what_means_workers()
    sys.stdin.buffer.read()
    ended = [end_family(mark) for mark in marks]
    shutil.rmtree(scratch, ignore_errors=True)
    return 0 if all(ended) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
