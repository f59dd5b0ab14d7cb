"""A judge that writes to a folder of the test."""

from __future__ import annotations

import itertools

from rljob_worker.metrics.sink import RunFiles
from rljob_worker.runtime.lead.judge import StepJudge
from rljob_worker.runtime.lead.recorder import Recorder
from rljob_worker.tests.documents import plan_of

TRAIN = {"train": [{"path": "some/data"}], "batchSize": 4}
DATA = TRAIN | {"validation": [{"path": "more/data"}]}


def without_validation():
    """A job that has nothing to validate on."""
    return {"data": TRAIN}


class Listener:
    """A reporter that hands the progress on."""

    def __init__(self, send):
        self._send = send

    def send(self, *, metrics, progress):
        self._send(dict(progress))


def make_judge(
    folder, *, committer, delay=1, keeps_checkpoints=True, stop_requested=lambda: False, send=lambda progress: None,
    clock=None, write_timeline=lambda step: None, **spec,
):  # fmt: skip
    """`spec` replaces fields of a job of ten steps that has validation data."""
    spec = plan_of(**{"data": DATA, **spec}).spec
    seconds = itertools.count().__next__
    recorder = Recorder(
        RunFiles(folder),
        Listener(send),
        total_steps=spec.stop.steps,
        attempt=1,
        clock=clock or (lambda: float(seconds())),
    )
    return StepJudge(spec, delay, recorder, committer, keeps_checkpoints, stop_requested, write_timeline)
