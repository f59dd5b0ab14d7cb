"""What killed processes leave, and what is still somebody's."""

import os
import subprocess
import sys
from pathlib import Path

from planes.leftovers import MARK, PREFIX, end_marked, marked, shared_directory
from rljob_worker.tests.waiting import wait_for


def test_directories_of_the_dead_go_and_those_of_the_living_stay(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    dead, living, other = (
        tmp_path / name for name in (f"{PREFIX}{gone.pid}-a", f"{PREFIX}{os.getppid()}-b", "rljob-c")
    )
    for place in (dead, living, other):
        place.mkdir()
        (place / "rows.npy").write_bytes(b"x")
    with shared_directory(tmp_path) as ours:
        assert not dead.exists() and living.exists() and other.exists()
        assert ours.name.startswith(f"{PREFIX}{os.getpid()}-") and ours.parent == tmp_path
    assert not ours.exists()


def test_what_lost_its_parents_ends_with_its_mark(tmp_path: Path):
    """A process that its parent has left behind, in a session of its own, as Ray's are."""
    command = (
        "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0, start_new_session=True)"
    )
    ours, theirs = os.pipe()
    with os.fdopen(theirs, "wb"), os.fdopen(ours) as waits:
        for mark in ("one", "two"):
            environment = {**os.environ, MARK: f"{tmp_path}/{mark}"}
            subprocess.run([sys.executable, "-c", command], env=environment, stdin=waits, check=True)
        # a process that is just being started has no environment yet
        assert wait_for(lambda: len(marked(f"{tmp_path}/one")) == len(marked(f"{tmp_path}/two")) == 1)
        end_marked(f"{tmp_path}/one")
        assert marked(f"{tmp_path}/one") == [] and len(marked(f"{tmp_path}/two")) == 1
        end_marked(f"{tmp_path}/two")
