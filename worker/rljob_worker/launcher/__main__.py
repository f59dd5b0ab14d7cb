"""`python -m rljob_worker.launcher [-- COMMAND ...]`: run this pod's workers; COMMAND replaces the worker's own."""

import signal
import sys

from rljob_worker.process.stop_requests import leave

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, leave)
    from rljob_worker.launcher.launching import main  # takes a moment, in which a request to stop is heard

    sys.exit(main(sys.argv[1:]))
