"""A command of a test in a fork of a warm interpreter; `warm.py` asks for it."""

import json
import os
import runpy
import sys

from rljob_worker.process.stop_requests import release_signals
from rljob_worker.tests.warm import COMMAND, INPUT


def main() -> None:
    """As `python -m MODULE ARGUMENTS...` in a folder would."""
    asked = json.loads(os.environ.pop(COMMAND))
    descriptor = int(os.environ.pop(INPUT))
    os.dup2(descriptor, 0)
    os.close(descriptor)
    os.chdir(asked["folder"])
    release_signals()
    sys.argv = [asked["module"], *asked["arguments"]]
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
