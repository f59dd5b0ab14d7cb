"""`python -m rljob_worker.forkserver --channel FD --preload [MODULE ...]`: the fork server of one pod.

`python -m rljob_worker.forkserver --listen FD --key KEY --preload MODULE ...`: a root, as long as its standard input.
"""

import argparse
import socket
import sys
from collections.abc import Sequence

from rljob_worker.forkserver.preloading import preload
from rljob_worker.forkserver.root import Root
from rljob_worker.forkserver.server import Server
from rljob_worker.process.stop_requests import hold_signals


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    hold_signals()
    if options.listen is None:
        _serve_pod(options.channel, options.preload)
    else:
        _serve_root(options.listen, options.key, options.preload)
    return 0


def _serve_pod(channel: int, modules: Sequence[str]) -> None:
    refusal = preload(modules) if modules else None
    if refusal is not None:
        print(f"fork server: workers import for themselves: {refusal}", file=sys.stderr, flush=True)
    with socket.socket(fileno=channel) as connected:
        Server(connected, forks=bool(modules) and refusal is None).serve()


def _serve_root(listening: int, key: str, modules: Sequence[str]) -> None:
    with socket.socket(fileno=listening) as listener:
        Root(listener, key, preload(modules)).serve(lifeline=sys.stdin.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rljob_worker.forkserver", description=__doc__)
    parser.add_argument("--channel", type=int, help="descriptor of the socket to the launcher")
    parser.add_argument("--listen", type=int, help="descriptor of a root's listening socket")
    parser.add_argument("--key", help="key of the environment that a root's forks may have")
    parser.add_argument(
        "--preload", nargs="*", default=[], help="modules that import what forks need; none: nothing is forked"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
