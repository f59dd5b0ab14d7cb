"""`python -m planes.unchecked`: a data buffer whose rows carry no checksum, to see what checksums cost."""

from __future__ import annotations

import sys

from rljob_worker.databuffer.rows import landing, stream
from rljob_worker.process.lifeline import ignore_what_means_workers


def no_checksum(*rows: object) -> bytes:
    return bytes(8)


if __name__ == "__main__":
    ignore_what_means_workers()
    stream.rows_checksum = landing.rows_checksum = no_checksum
    from rljob_worker.databuffer.server.process import main

    sys.exit(main())
