"""The lead worker, rank 0 of the group that updates the first policy: it trains like the others, and judges meanwhile.

main thread       stages … report(n) ── stages of n + 1 … verdict(n + 1 - D) …
                              │                                  ▲
judging thread           collect(n)  write  decide  announce ────┘
                                                        └── commit(n), of which the judge has a thread of its own
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue

from rljob_worker.checkpoint.writer import Committer
from rljob_worker.databuffer.protocol.worker_calls import ReportTopic
from rljob_worker.databuffer.routes.job_tree import OPENING, REPORT, VALIDATION, VERDICT
from rljob_worker.metrics.report import StepReport, report_from_bytes, report_to_bytes
from rljob_worker.metrics.reporter import Reporter
from rljob_worker.metrics.sink import RunFiles
from rljob_worker.run_page.page import write_page
from rljob_worker.rundir.directory import REPORT as REPORT_PAGE
from rljob_worker.runtime.control import ControlChannel, Opening, Verdict, reward_name, said, verdict_before
from rljob_worker.runtime.figures import merged
from rljob_worker.runtime.lead.judge import StepJudge
from rljob_worker.runtime.lead.opening import open_run
from rljob_worker.runtime.lead.recorder import Recorder
from rljob_worker.runtime.profiling.profiler import step_folder
from rljob_worker.runtime.profiling.timeline import assemble
from rljob_worker.runtime.setup.environment import WorkerEnvironment

FINISHING_SECONDS = 2.0
"""How long a lead that failed goes on judging what it has reported: others have reported it, too, as a rule."""
WRITE_GRACE_SECONDS = 30.0
"""How much longer it waits for a step that is being written down or committed."""


class Lead:
    """Control of the lead. What breaks while it judges is raised by its next `report` or `verdict`, as it is."""

    def __init__(self, channel: ControlChannel, ordinal: int, opening: Opening, judge: StepJudge) -> None:
        self.judge = judge
        self._channel, self._ordinal, self._opening = channel, ordinal, opening
        self._reported: SimpleQueue[int | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._judged, self._verdict = -1, Verdict()
        self._error: BaseException | None = None
        self._writing = threading.Lock()
        self.left = False
        """Whether it has failed, and judges no more."""

    def open(self) -> Opening:
        """Tell every worker where the job goes on."""
        self._channel.announce(OPENING, 0, said(self._opening))
        return self._opening

    @contextmanager
    def attend(self, step: int, active_seconds: float) -> Iterator[None]:
        """Judge what is reported inside; a failure of either thread ends both, and the first one is raised."""
        recorder = self.judge.recorder
        recorder.resume_from(step, active_seconds)
        thread = threading.Thread(target=self._run, name="lead", daemon=True)
        thread.start()
        try:
            yield
        except BaseException as error:
            first = self._broken_by
            self._leave(thread)
            if first is not None and first is not error and isinstance(error, Exception):
                raise first from error
            raise
        self._reported.put(None)
        thread.join()
        self.judge.committing.wait()
        recorder.close()

    @property
    def active_seconds(self) -> float:
        return self.judge.recorder.active_seconds

    def report(self, step: int, report: StepReport, topic: ReportTopic = "report") -> None:
        self._raise_error()
        self._channel.report(step, report_to_bytes(report, self._ordinal), topic)
        if topic == REPORT:
            self._reported.put(step)

    def verdict(self, step: int) -> Verdict:
        """Everything that it waits for has a deadline of its own."""
        with self._changed:
            self._changed.wait_for(lambda: self._judged >= step or self._error is not None)
        self._raise_error()
        return self._verdict

    def fail(self) -> None:
        self.judge.recorder.fail()

    def _run(self) -> None:
        try:
            if self._opening.owes_validation:
                validation = self._validation(self._opening.step)
                with self._writing:
                    self.judge.validated_late(self._opening.step, validation, self._announce)
            while (step := self._reported.get()) is not None and not self.left:
                # asked for once the lead itself has reported: only from then on is anybody late
                report = report_from_bytes(self._channel.collect(step))
                if self.judge.is_validated_later(step):
                    with self._writing:
                        if self.left:
                            return
                        self.judge.begin(step, report)
                    report = merged(report, self._validation(step))
                with self._writing:
                    if self.left:
                        return
                    self.judge.judge(step, report, self._announce)
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _validation(self, step: int) -> StepReport:
        """That of a step, which generators make once they are as far as their staleness lets them be ahead."""
        spec = self.judge.spec
        longest = spec.data_buffer.deadline_seconds
        if spec.elastic_group is not None:
            longest += spec.rollout.generators_deadline_seconds
        seconds = longest * (spec.rollout.max_staleness + 2)
        return report_from_bytes(self._channel.collect(step, VALIDATION, seconds))

    def _announce(self, step: int, verdict: Verdict) -> None:
        self._channel.announce(VERDICT, step, said(verdict))
        with self._changed:
            self._judged, self._verdict = step, verdict
            self._changed.notify_all()

    @property
    def _broken_by(self) -> BaseException | None:
        return self._error or self.judge.committing.error

    def _raise_error(self) -> None:
        if (error := self._broken_by) is not None:
            raise error

    def _leave(self, thread: threading.Thread) -> None:
        """A checkpoint that every rank has written is still committed. Nothing is written after this."""
        self._reported.put(None)
        thread.join(FINISHING_SECONDS)
        self.left = True
        if self._writing.acquire(timeout=WRITE_GRACE_SECONDS):
            self._writing.release()
        self.judge.committing.leave(WRITE_GRACE_SECONDS)


def build_lead(
    environment: WorkerEnvironment, channel: ControlChannel, ordinal: int, reporter: Reporter, meeting: str = ""
) -> Lead:
    """The lead, which has claimed the run, chosen where to go on, and opened its files. meeting: as in `Opening`.

    Raises InvalidJob for a job that cannot go on with what is there, or a tracker that is not installed.
    """
    plan, spec = environment.plan, environment.plan.spec
    start = open_run(environment)
    monitoring = spec.monitoring
    directory = environment.run_dir
    files = RunFiles(
        directory,
        monitoring.trackers,
        monitoring.artifacts,
        name=plan.job,
        config=spec.to_json(),
        write_report=partial(write_page, [directory], directory / REPORT_PAGE),
    )
    committer = Committer(
        run_dir=environment.home,
        owner=environment.owner,
        plan_hash=plan.hash(),
        ranks=tuple((group.name, rank) for group in plan.gang for rank in range(group.num_workers)),
        keep_last=spec.checkpoint.keep_last,
        keep_best=spec.checkpoint.keep_best,
        deadline_seconds=spec.data_buffer.deadline_seconds,
    )
    first_in_force = start.step - plan.verdict_delay + 1
    rewards = files.metric(reward_name(spec), first_in_force, start.step) if start.step else {}
    verdict = verdict_before(start.step, rewards, stop=spec.stop, delay=plan.verdict_delay)
    judge = StepJudge(
        spec=spec,
        delay=plan.verdict_delay,
        recorder=Recorder(
            files,
            reporter,
            total_steps=spec.stop.steps,
            attempt=environment.attempt,
            weights={reward.name: reward.weight for reward in spec.rewards},
        ),
        committer=committer,
        keeps_checkpoints=environment.keeps_checkpoints,
        stop_requested=channel.stop_requested,
        verdict=verdict,
        write_timeline=lambda step: assemble(step_folder(environment.run_dir, step)),
    )
    checkpoint = None if start.checkpoint is None else str(start.checkpoint)
    owes_validation = start.step < spec.stop.steps and files.held_report(start.step) is not None
    opening = Opening(
        start.step, checkpoint, meeting, verdict.last_step, verdict.cause, owes_validation=owes_validation
    )
    return Lead(channel, ordinal, opening, judge)
