"""`python -m rljob_worker.databuffer`: the data buffer of one pod, until the end of its supervisor, or SIGTERM where it
has none."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from rljob_worker.process.lifeline import ignore_what_means_workers, lifeline_fd


def _stop_before_the_start(number: int, _frame: FrameType | None) -> None:
    """Until `main` listens. A container's process 1 has no default: a pod deleted meanwhile would use all its grace."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    if lifeline_fd() is None:
        signal.signal(signal.SIGTERM, _stop_before_the_start)
    else:
        ignore_what_means_workers()
    from rljob_worker.databuffer.server.process import main

    sys.exit(main())
