"""The command `rljob`. Every subcommand imports what it needs when it runs, so that `--help` and errors are instant."""

import signal
import sys
from typing import NoReturn

INTERRUPTED = 130


def main() -> NoReturn:
    """Entry point of the command line. Ctrl-C and SIGTERM end it at once and in one way, from the first import on;
    a run that has processes listens for itself."""
    try:
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        from rljob_worker.cli.app import app
        from rljob_worker.cli.output import run_and_exit

        run_and_exit(app)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
