"""`python -m rljob_worker.databuffer`: the data buffer of one pod, until the end of its supervisor, or SIGTERM where it
has none."""

from __future__ import annotations

import signal
import sys

from rljob_worker.process.lifeline import ignore_what_means_workers, lifeline_fd
from rljob_worker.process.stop_requests import exit_on_signal

if __name__ == "__main__":
    if lifeline_fd() is None:
        signal.signal(signal.SIGTERM, exit_on_signal)
    else:
        ignore_what_means_workers()
    from rljob_worker.databuffer.server.process import main

    sys.exit(main())
