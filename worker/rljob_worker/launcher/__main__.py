"""`python -m rljob_worker.launcher [-- COMMAND ...]`: run this pod's workers; COMMAND replaces the worker's own."""

import signal
import sys


def _stop_before_the_start(number: int, _frame: object) -> None:
    """Until the workers are watched. A container's process 1 has no default: without this it would not hear SIGTERM."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop_before_the_start)
    from rljob_worker.launcher.launching import main  # takes a moment, in which a request to stop is heard

    sys.exit(main(sys.argv[1:]))
