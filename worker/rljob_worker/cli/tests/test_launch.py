"""What `rljob launch` refuses, on host 0 and before any host is waited for: one message, exit code 64, no traceback."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from rljob_worker.cli.app import app
from rljob_worker.cli.output import run_and_exit
from rljob_worker.cli.tests.test_commands import write_job

TOKEN = "0123456789abcdef-of-a-test"
NOBODY = {"RANK": None, "WORLD_SIZE": None, "MASTER_ADDR": None, "MASTER_PORT": None}
SLURM = NOBODY | {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_NODELIST": "gpu01", "SLURM_JOB_ID": "7"}
FILE = ["--rank-file", "hosts.txt"]

# name: (variables that are changed, lines of hosts.txt, options, words of the message)
CASES: dict[str, tuple[dict[str, str | None], str | bytes, list[str], str]] = {
    # which host this is
    "nobody says which host this is": (NOBODY, "", [], "nobody says which host this is; start one launcher on each"),
    "a rank that is a word": ({"RANK": "first"}, "", [], "RANK is 'first', expected a whole number from 0"),
    "a rank below 0": ({"RANK": "-1"}, "", [], "RANK is '-1'"),
    "a rank that nobody has": ({"RANK": "1"}, "", [], "RANK is 1 and WORLD_SIZE is 1: hosts count from 0"),
    "no number of hosts": ({"WORLD_SIZE": None}, "", [], "WORLD_SIZE is not set; it goes with RANK"),
    "no hosts at all": ({"WORLD_SIZE": "0"}, "", [], "WORLD_SIZE is 0, expected 1 to"),
    "a number of hosts with a fraction": ({"WORLD_SIZE": "1.5"}, "", [], "WORLD_SIZE is '1.5'"),
    "no address of host 0": ({"MASTER_ADDR": ""}, "", [], "MASTER_ADDR is not set; it goes with RANK"),
    "a port that is none": ({"MASTER_PORT": "0"}, "", [], "MASTER_PORT is 0, expected a port from 1 to 65535"),
    "a port that is a word": ({"MASTER_PORT": "http"}, "", [], "MASTER_PORT is 'http'"),
    "a launcher for each accelerator": ({"LOCAL_WORLD_SIZE": "8"}, "", [], "start one for each host"),
    "a task for each accelerator": (SLURM | {"SLURM_NTASKS": "8"}, "", [], "SLURM_NTASKS is 8 and SLURM_JOB_NODELIST"),
    "no nodes": (SLURM | {"SLURM_JOB_NODELIST": None}, "", [], "SLURM_JOB_NODELIST is not set; it goes with SLURM"),
    "nodes that are no list": (SLURM | {"SLURM_JOB_NODELIST": "gpu[1-"}, "", [], "is not a list of nodes"),
    # the rank file
    "no rank file": ({}, "", ["--rank-file", "gone.txt"], "there is no file gone.txt; write one name or address"),
    "a rank file that is a folder": ({}, "", ["--rank-file", "some"], "is a directory"),
    "a rank file that is not text": ({}, b"\xff\xfe", FILE, "hosts.txt is not UTF-8 text (byte 0)"),
    "a rank file without hosts": ({}, "# none yet\n", FILE, "hosts.txt names no host; write one name or address"),
    "a rank file as MPI has it": ({}, "node0 slots=8\n", FILE, "hosts.txt, line 1: 'node0 slots=8'"),
    "a host that is listed twice": ({}, "a\nb\na\n", FILE, "hosts.txt, line 3: a is on line 1 already"),
    "a rank file of other machines": ({}, "192.0.2.1\n", FILE, "this machine is not in the rank file"),
    "this machine by two names": ({}, "127.0.0.1\n127.0.0.2\n", FILE, "are this machine: 127.0.0.1, 127.0.0.2"),
    # the secret
    "no token": ({"RLJOB_TOKEN": None}, "", [], "RLJOB_TOKEN is not set: anybody on the network could join"),
    "a token that is short": ({"RLJOB_TOKEN": "secret"}, "", [], "not a secret of 16 to 512 visible ASCII characters"),
    "a token with a space": ({"RLJOB_TOKEN": "0123456789 abcdef"}, "", [], "visible ASCII characters"),
    # options and the job
    "no time to wait": ({}, "", ["--wait", "0"], "Invalid value for '--wait'"),
    "a time to wait that is a word": ({}, "", ["--wait", "long"], "Invalid value for '--wait'"),
    "an override of nothing": ({}, "", ["--set", "stop.stepz=1"], "(--set stop.stepz=1)"),
    "an override that is wrong": ({}, "", ["--set", "stop.steps=-1"], "spec.stop.steps (--set stop.steps=-1): "),
    "more pods than hosts": (
        {},
        "",
        ["--set", "workerGroups=[{name: train, replicas: 2}]"],
        "the job has 2 pods (train 2) and there are 1 hosts (WORLD_SIZE)",
    ),
    "nothing to go on with": ({}, "", ["--resume", "7"], "--resume 7: there is no run to go on with"),
    "a resumption of no kind": ({}, "", ["--resume", "last"], "--resume last is neither auto, never nor"),
    "a reward that is not there": ({}, "", ["--set", "rewards[0].run=rewards:gone"], "has no 'gone'"),
    "a run that is somebody's folder": ({}, "", ["--runs-dir", "some"], "exists and is not a run of rljob"),
}


@pytest.fixture
def place() -> dict[str, str]:
    """Host 0 of one, at a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    return {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RLJOB_TOKEN": TOKEN}


@pytest.fixture
def launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, int]]:
    """Runs `rljob launch job.yaml` in a folder with a good job: what was said, and the exit code."""
    write_job(tmp_path)
    monkeypatch.chdir(tmp_path)

    def launch(options: list[str], environment: Mapping[str, str | None]) -> tuple[str, int]:
        for name, value in environment.items():
            monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["rljob", "launch", "job.yaml", *options])
        with pytest.raises(SystemExit) as end:
            run_and_exit(app)
        assert isinstance(end.value.code, int)
        return capsys.readouterr().err, end.value.code

    return launch


@pytest.mark.parametrize("name", CASES)
def test_a_launch_that_cannot_be_is_refused_with_what_is_wrong(
    name: str, place: dict[str, str], tmp_path: Path, launched: Callable[..., tuple[str, int]]
) -> None:
    variables, lines, options, words = CASES[name]
    (tmp_path / "some" / "tiny").mkdir()
    (tmp_path / "some" / "tiny" / "thesis.tex").touch()
    (tmp_path / "hosts.txt").write_bytes(lines if isinstance(lines, bytes) else lines.encode())
    said, code = launched(options, place | variables)
    assert code == 64 and words in said, said
    assert "Traceback" not in said and not (tmp_path / "runs" / "tiny" / "run.json").exists()


def test_a_port_that_another_has_is_named(place: dict[str, str], launched: Callable[..., tuple[str, int]]) -> None:
    with socket.create_server(("", int(place["MASTER_PORT"]))):
        said, code = launched([], place)
    assert code == 64 and f"host 0 cannot listen on port {place['MASTER_PORT']}" in said


def test_whoever_may_still_come_is_waited_for_no_longer_than_hosts_wait(
    place: dict[str, str], launched: Callable[..., tuple[str, int]]
) -> None:
    said, code = launched(["--wait", "1", "--set", "stop.steps=-1"], place | {"WORLD_SIZE": "2"})
    assert code == 64 and "ends when the other hosts have been notified, in 1 s at most" in said
