"""The worker process: exit codes when it cannot start."""

import os
import subprocess
import sys

from rljob_worker.process.last_words import TERMINATION_FILE


def run_worker(output, **environment):
    known = {name: value for name, value in os.environ.items() if not name.startswith("RLJOB_")}
    command = [sys.executable, "-m", "rljob_worker.runtime"]
    return subprocess.run(command, env=known | environment, stdout=output, stderr=output)


def test_a_worker_without_its_environment_names_what_is_missing(tmp_path):
    words = tmp_path / "words.json"
    done = run_worker(subprocess.PIPE, **{TERMINATION_FILE: str(words)})
    assert done.returncode == 64
    assert b"RLJOB_TOKEN_FILE is not set" in done.stderr
    assert "RLJOB_TOKEN_FILE" in words.read_text()


def test_on_a_full_disk_the_exit_code_still_speaks(tmp_path):
    with open("/dev/full", "w") as full:
        assert run_worker(full, **{TERMINATION_FILE: str(tmp_path / "no" / "where")}).returncode == 64
