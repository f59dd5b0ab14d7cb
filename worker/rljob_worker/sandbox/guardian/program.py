"""A program in the place of a process that runs user code: the pipes are its standard input and output.

<- {"command": ["server", "--port", "0"], "folder": "/job"}        once, framed; from then on bytes of the program's own
"""

from __future__ import annotations

import os

from rljob_worker.sandbox.guardian.beginning import RESULTS
from rljob_worker.sandbox.guardian.framing import Results, receive_message


def serve(requests: int, results: Results) -> None:
    """Become the program. Raises OSError: it cannot be started."""
    hello = receive_message(requests)
    if hello is None:
        return
    os.chdir(hello["folder"])
    os.dup2(requests, 0)
    os.dup2(RESULTS, 1)
    os.execvp(hello["command"][0], hello["command"])
