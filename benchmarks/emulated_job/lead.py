"""The lead as a process that does nothing else."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from emulated_job.reports import report_of
from rljob_worker.databuffer.tests.gang import Gang
from rljob_worker.metrics.reporter import Reporter
from rljob_worker.metrics.sink import RunFiles
from rljob_worker.runtime.control import Opening
from rljob_worker.runtime.lead.judge import StepJudge
from rljob_worker.runtime.lead.lead import Lead
from rljob_worker.runtime.lead.recorder import Recorder


class NoCommitter:
    """A job without checkpoints."""

    def commit(self, step: int, *, score: float | None) -> None:
        raise NotImplementedError


def lead_process(gang: Gang, commands: Connection) -> None:
    """Reports each requested step; answers with the seconds that took, and at last with its CPU time."""
    control = gang.client("train", 0)
    spec = gang.plan.spec
    with tempfile.TemporaryDirectory() as directory, open(os.devnull, "wb") as nobody:
        files = RunFiles(Path(directory))
        recorder = Recorder(files, Reporter(nobody.fileno()), total_steps=spec.stop.steps, attempt=1)
        committer: Any = NoCommitter()
        judge = StepJudge(
            spec, gang.plan.verdict_delay, recorder, committer, False, control.stop_requested, lambda step: None
        )
        lead = Lead(control, 0, Opening(0, None), judge)
        report = report_of(0)
        with lead.attend(0, 0.0):
            thread = next(thread for thread in threading.enumerate() if thread.name == "lead")
            assert thread.ident is not None
            clock = time.pthread_getcpuclockid(thread.ident)
            while (step := commands.recv()) is not None:
                begin = time.perf_counter()
                lead.report(step, report)
                commands.send((time.perf_counter() - begin, time.clock_gettime(clock)))
    control.close()
