"""`supervise.py RUN_DIR OPTIONS`: run_process.py where that is imported already."""

import sys

from rljob_worker.supervision.tests.run_process import main

if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
