"""A callback of `rljob.run` that raises, or does not return."""

import json
import shutil
import signal
import socket
import threading
from types import SimpleNamespace

import pytest

from rljob_worker.cli.from_python.callbacks import CallbackTimeout, CallbackView, RunCallbacks
from rljob_worker.errors import StorageError
from rljob_worker.rundir.directory import RunDirectory
from rljob_worker.supervision.supervisor import Launch, Supervisor
from rljob_worker.tests.documents import plan_of


class FakeGang:
    """One worker that has written two steps when it is first polled, and goes on."""

    serving_seconds = 0.1
    has_ended = False

    def __init__(self, directory):
        self._directory = directory

    def start(self):
        lines = [json.dumps({"step": step, "reward/mean": 0.5}) + "\n" for step in (1, 2)]
        self._directory.metrics.write_text("".join(lines))

    def news(self):
        return []

    def poll(self):
        return None

    def hear_requests(self):
        return 0

    def metrics_url(self):
        return ""

    def end(self):
        self.has_ended = True


class FakeGangs:
    services = SimpleNamespace(start=lambda: False, are_healthy=True, look=lambda max_starts: None)

    def __init__(self, directory):
        self.only = FakeGang(directory)

    def gang(self, attempt, resume):
        return self.only

    def hear_requests(self):
        return 0


def run(folder, raised=KeyError, **callbacks):
    directory = RunDirectory(folder / "tiny")
    directory.prepare()
    gangs = FakeGangs(directory)
    with pytest.raises(raised):
        Supervisor(
            Launch(directory, plan_of(), "never"), CallbackView(directory, RunCallbacks(**callbacks)), gangs
        ).run()
    return directory, gangs.only


def test_a_run_whose_callback_raises_has_failed_by_its_name(tmp_path):
    directory, gang = run(tmp_path, on_step=lambda step, metrics: metrics["reward/maen"])
    note = directory.read_note()
    assert (note.phase, note.exit_code) == ("Failed", 70)
    assert note.cause == "KeyError: 'reward/maen'; raised by the callback on_step"
    assert gang.has_ended
    assert (
        directory.supervisor_log.read_text().splitlines()[-1].endswith(f"Failed, attempt 1, exit code 70: {note.cause}")
    )


@pytest.mark.parametrize("callback", ["on_phase", "on_message"])
def test_other_callbacks_are_named_too(tmp_path, callback):
    directory, _ = run(tmp_path, **{callback: lambda text: {}["reward/maen"]})
    assert directory.read_note().cause == f"KeyError: 'reward/maen'; raised by the callback {callback}"


def test_an_error_of_ours_keeps_its_exit_code(tmp_path):
    def full(text):
        raise StorageError("cannot write the page: no space left on device")

    directory = RunDirectory(tmp_path / "tiny")
    directory.prepare()
    launch, view = Launch(directory, plan_of(), "never"), CallbackView(directory, RunCallbacks(on_phase=full))
    with pytest.raises(StorageError, match="no space left"):
        Supervisor(launch, view, FakeGangs(directory)).run()
    assert directory.read_note().exit_code == 74


def test_a_note_that_cannot_be_written_does_not_hide_why_the_run_ended(tmp_path):
    def lose_directory(text):
        shutil.rmtree(tmp_path / "tiny")
        raise KeyError("reward/maen")

    run(tmp_path, on_phase=lose_directory)


def read_nothing():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.recv(1)


def wait_for_nobody():
    threading.Event().wait()


def loop():
    while True:
        pass


@pytest.mark.parametrize("wait", [read_nothing, wait_for_nobody, loop])
@pytest.mark.parametrize("callback", ["on_step", "on_phase"])
def test_a_callback_that_hangs_is_interrupted_and_ends_the_run_by_its_name(tmp_path, callback, wait):
    hanging = {callback: lambda *_: wait()}
    directory, gang = run(tmp_path, CallbackTimeout, limit_seconds=0.05, **hanging)
    note = directory.read_note()
    assert (note.phase, note.exit_code) == ("Failed", 64)
    assert note.cause.startswith("CallbackTimeout: no return within 0.05 s; put what takes long into a thread")
    assert note.cause.endswith(f"raised by the callback {callback}")
    assert gang.has_ended == (callback == "on_step"), "a phase begins before there is a gang"


def test_alarms_of_the_users_own_ring_in_a_callback_and_after_it(tmp_path):
    rung = []
    old = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    try:

        def on_step(step, metrics):
            signal.raise_signal(signal.SIGALRM)
            raise KeyError("reward/maen")

        run(tmp_path, on_step=on_step)
        signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, old)
    assert rung == [signal.SIGALRM] * 2
