"""`python -m rljob_worker.launcher [-- COMMAND ...]`: run this pod's workers; COMMAND replaces the worker's own."""

import os
import signal
import sys

from rljob_worker.process.stop_requests import exit_on_signal, release_signals

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, exit_on_signal)
    release_signals()
    from rljob_worker.forkserver.forking import flush_output
    from rljob_worker.launcher.launching import main  # takes a moment, in which a request to stop is heard

    code = main(sys.argv[1:])
    flush_output()
    os._exit(code)  # what workers need is imported here, too, and has nothing to say at the end
