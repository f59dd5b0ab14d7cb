"""`python -m rljob_worker.forkserver --listen FD --key KEY [--preload MODULE ...] [--scratch PATH --marks MARK ...]`

A root, as long as its standard input, or the process that started it: then it ends every process with one of the marks,
removes the directory, and leaves.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

from rljob_worker.forkserver.preloading import preload
from rljob_worker.forkserver.server import ForkingServer
from rljob_worker.process.marked_processes import end_marked_processes
from rljob_worker.process.stop_requests import hold_signals


def main(arguments: Sequence[str]) -> NoReturn:
    options = _parser().parse_args(arguments)

    def end(*_: object) -> NoReturn:
        ended = [end_marked_processes(mark) for mark in options.marks]
        if options.scratch:
            shutil.rmtree(options.scratch, ignore_errors=True)
        os._exit(0 if all(ended) else 1)

    signal.signal(signal.SIGHUP, end)  # also while modules are imported
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))
    hold_signals()
    refusal = preload(options.preload) if options.preload else None
    if refusal is not None:
        print(f"fork server: workers import for themselves: {refusal}", file=sys.stderr, flush=True)
    with socket.socket(fileno=options.listen) as listener:
        ForkingServer(listener, options.key, forks=bool(options.preload) and refusal is None).serve(sys.stdin.fileno())
    end()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rljob_worker.forkserver", description=__doc__)
    parser.add_argument("--listen", type=int, required=True, help="descriptor of the listening socket")
    parser.add_argument("--key", default="", help="key of the environment that forks may have")
    parser.add_argument("--preload", nargs="*", default=[], help="modules that forks need; none: nothing is forked")
    parser.add_argument("--scratch", default="", help="directory that is removed at the end")
    parser.add_argument("--marks", nargs="*", default=[], help="of the processes that are ended then")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
