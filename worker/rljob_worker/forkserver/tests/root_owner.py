"""Owns a root fork server until it is killed: `root_owner.py SOCKET LOG MODULE ...`; prints the root's process id."""

import os
import sys
import time
from contextlib import closing
from pathlib import Path

from rljob_worker.forkserver.client import Root


def main(path: str, log: str, *preload: str) -> None:
    with closing(Root(os.environ, preload, Path(path), Path(log))) as root:
        print(root.pid, flush=True)
        while True:
            time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
