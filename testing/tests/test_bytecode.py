"""Tests of how processes share what one of them compiles."""

import fcntl
import subprocess
import sys
from pathlib import Path

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.tests.waiting import wait_for

CHECKOUT = Path(__file__).parents[2]
NOTING = "from pathlib import Path\nPath('imported').touch()\ndef test_nothing(): pass\n"


def is_waiting(pid: int) -> bool:
    """For a lock on a file."""
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and str(pid) in line.split() for line in lines)


def test_a_file_is_imported_by_one_process_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_one.py").write_text(NOTING)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "testing.bytecode", "-p", "no:cacheprovider"]
    environment = {"PYTHONPATH": str(CHECKOUT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    with (tmp_path / "test_one.py").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as another process has it that imports the file
        run = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
        wait_for(lambda: is_waiting(run.pid) or run.poll() is not None)
        was_imported = (tmp_path / "imported").exists()
    assert run.wait(TEST_TIMEOUT_SECONDS) == 0
    assert not was_imported and (tmp_path / "imported").exists()
