"""A module that a fork server runs: says who it is on its pipe, then does what RLJOB_TEST_SCRIPT says.

{"exit": 3}   {"exit": "text"}   {"raise": "text"}   {"grandchild": true}   {"release": false}
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from rljob_worker.process.stop_requests import release_signals


def report() -> dict[str, Any]:
    result: dict[str, Any] = {
        "pid": os.getpid(),
        "group": os.getpgid(0),
        "parent": os.getppid(),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": sys.path,
        "arguments": sys.argv,
        "forked": "rljob_worker.forkserver.server" in sys.modules,
        "users_code": "users_code" in sys.modules,
        "command_line": _proc("cmdline"),
        "first_environment": _proc("environ"),
        "descriptors": sorted(int(item) for item in os.listdir("/proc/self/fd")),
    }
    if "numpy" in sys.modules:
        result["drawn"] = sys.modules["numpy"].random.random()
    return result


def _proc(name: str) -> list[str]:
    with open(f"/proc/self/{name}") as file:
        return [entry for entry in file.read().split("\0") if entry]


def main() -> None:
    script: dict[str, Any] = json.loads(os.environ.get("RLJOB_TEST_SCRIPT", "{}"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("heard SIGTERM"))
    release_signals()
    if "say" in script:
        print(script["say"])
    said = report()
    os.write(int(os.environ["PIPE"]), json.dumps(said).encode() + b"\n")
    if "raise" in script:
        raise LookupError(script["raise"])
    if "open" in script:
        Path(script["open"]).read_text()
    if "exit" in script:
        sys.exit(script["exit"])
    while True:
        time.sleep(600)


if __name__ == "__main__":
    main()
