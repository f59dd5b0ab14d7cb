"""`python -m rljob_worker.databuffer`: the data buffer of one pod, until SIGTERM or the end of its supervisor."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def _stop_before_the_start(number: int, _frame: FrameType | None) -> None:
    """Until `main` listens. A container's process 1 has no default: a pod deleted meanwhile would use all its grace."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop_before_the_start)
    from rljob_worker.databuffer.server.process import main

    sys.exit(main())
