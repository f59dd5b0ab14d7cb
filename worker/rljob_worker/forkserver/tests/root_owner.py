"""Owns a root fork server until it is killed: `root_owner.py SOCKET LOG MODULE ...`; prints the root's process id."""

import os
import sys
import time
from pathlib import Path

from rljob_worker.forkserver.client import fork_root


def main(path: str, log: str, *preload: str) -> None:
    with fork_root(os.environ, preload, Path(path), Path(log)) as root:
        print(root.pid, flush=True)
        while True:
            time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
