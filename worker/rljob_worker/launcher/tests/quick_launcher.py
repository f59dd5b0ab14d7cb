"""The launcher, whose workers get half a second to end after the first in place of two: `-m ... [-- COMMAND ...]`. In
most tests nobody else is about to end, and that time is nothing but waited for."""

import signal
import sys

from rljob_worker.process.stop_requests import exit_on_signal

QUICK_SECONDS = 0.5

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, exit_on_signal)
    from rljob_worker.launcher import watchdog
    from rljob_worker.launcher.launching import main

    watchdog.SETTLE_SECONDS = watchdog.INTERRUPT_GRACE_SECONDS = QUICK_SECONDS
    sys.exit(main(sys.argv[1:]))
