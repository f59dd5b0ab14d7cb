"""How the pods of one attempt end, as their processes are looked at one after the other."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.local.pods.pods import Commands, LocalPod, Pods


class Ending:
    """A process that has ended once somebody has looked at it `looks` times."""

    def __init__(self, name: str, code: int, looks: int) -> None:
        self.name, self.log = name, name
        self._code, self._looks = code, looks

    def code(self) -> int | None:
        self._looks -= 1
        return self._code if self._looks < 0 else None

    def last_line(self) -> str:
        return "no last words"


@pytest.mark.parametrize("looks", range(6))
def test_an_attempt_never_ends_well_because_its_launcher_ended_between_two_looks(tmp_path, looks):
    pods = Pods(cast(Any, SimpleNamespace(log_dir=tmp_path)), Commands())
    launcher, buffer = (
        Ending("launcher-train-0", int(ExitCode.INVALID_JOB), looks),
        Ending("databuffer-train-0", 0, 100),
    )
    pods.pods.append(LocalPod(Host("train", 0), {}, cast(Any, buffer), cast(Any, launcher)))
    while (end := pods.poll()) is None:
        pass
    assert (end.code, end.process) == (int(ExitCode.INVALID_JOB), "launcher-train-0")
