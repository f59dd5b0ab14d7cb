"""Tests of the root fork servers that test processes share."""

import fcntl
import json
import subprocess
import sys
import threading
from pathlib import Path

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.tests.shared_root import end_after_others

ASK_TWICE = """
import json, os
from rljob_worker.forkserver.client import ForkServer
from rljob_worker.forkserver.tests.asking import LIGHT
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.tests.shared_root import shared_root

answers = [shared_root("two", {"ASKED": asked}, dict(os.environ), LIGHT) for asked in ("first", "second")]
for _, path in answers:
    ForkServer(path).close()
print(json.dumps([(environment, str(path)) for environment, path in answers]))
"""


def test_all_get_the_root_and_the_environment_of_the_first_and_nothing_is_left(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "PYTEST_XDIST_TESTRUNUID": "run"}
    command = [sys.executable, "-c", ASK_TWICE]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=TEST_TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)
    assert first == second == [{"ASKED": "first"}, str(tmp_path / "rljob-test-run-two" / "root.sock")]
    assert list(tmp_path.iterdir()) == []


def test_a_root_ends_after_the_last_who_uses_it(tmp_path: Path) -> None:
    order: list[str] = []
    own, other = ((tmp_path / "users").open("w") for _ in range(2))
    for users in (own, other):
        fcntl.flock(users, fcntl.LOCK_SH)
    owner = threading.Thread(target=end_after_others, args=(own, lambda: order.append("root"), tmp_path))
    owner.start()
    owner.join(0.1)
    order.append("other")
    other.close()
    owner.join()
    assert order == ["other", "root"]
    assert not tmp_path.exists()
