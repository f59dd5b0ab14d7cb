"""`python -m rljob_worker.databuffer`: the data buffer of one pod, until SIGTERM or the end of its supervisor."""

from __future__ import annotations

import sys

from rljob_worker.databuffer.process import main

if __name__ == "__main__":
    sys.exit(main())
