"""One worker: trains from where the lead says, says how it ended.

`Worker.step` is a training step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from rljob_api.planning.plan import Plan, StagePlan
from rljob_api.planning.weights.versions import generating_version, policy_version, versions_in_flight
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.databuffer.client import BufferClient
from rljob_worker.databuffer.routes.job_tree import VALIDATION
from rljob_worker.metrics.report import StepReport
from rljob_worker.metrics.scalars import mean
from rljob_worker.process.last_words import LastWords
from rljob_worker.runtime.checkpoints import Checkpoints
from rljob_worker.runtime.control import Control, Opening, StepEnd, Verdict, end_of, governing
from rljob_worker.runtime.figures import StepFigures, data_metrics, groups_in_flight, merged, report_of, times_of
from rljob_worker.runtime.handover import Handover
from rljob_worker.runtime.lead.lead import WRITE_GRACE_SECONDS
from rljob_worker.runtime.memory_phases import begin_generation, end_generation
from rljob_worker.runtime.owned_leases import OwnedLeases
from rljob_worker.runtime.profiling.profiler import Profiler
from rljob_worker.runtime.setup.environment import WorkerEnvironment
from rljob_worker.runtime.setup.resources import GENERATING
from rljob_worker.runtime.status import StatusPoster
from rljob_worker.runtime.validation import TakePiece, Validation
from rljob_worker.stages.draws.draw_assignment import VALIDATION_ROUND, take_lease
from rljob_worker.stages.received_rows import ReceivedLeases
from rljob_worker.stages.stage import Resources, Stage, StageContext
from rljob_worker.stages.token_samples import token_samples
from rljob_worker.weights.sync import WeightSync


@dataclass
class Worker:
    """One rank with everything built."""

    environment: WorkerEnvironment
    client: BufferClient
    resources: Resources
    schedule: tuple[tuple[StagePlan, Stage], ...]
    handover: Handover
    weights: WeightSync
    validations: Mapping[str, Validation]
    """By policy: this rank's share; none where the job has no validation data, or this group does not generate."""
    checkpoints: Checkpoints
    control: Control
    opening: Opening
    """Where the job goes on."""
    figures: StepFigures
    profiler: Profiler
    status: StatusPoster
    first_reported: int = 0
    """The first step on which this attempt hears a verdict: 0 where it validates before the first step."""
    leases: OwnedLeases | None = None
    """What is said about guests, where this worker owns leases."""
    received: ReceivedLeases | None = None
    """What guests made, in the same workers."""
    version: int = -1
    """Version of the weights that this rank took last; -1 in a group that keeps pace with training."""

    def run(self) -> LastWords:
        """Go on from where the lead says, to the last step."""
        state = self.checkpoints.restore(self.opening)
        attending = self.control.attend(self.opening.step, state.active_seconds)
        with attending, self.checkpoints.writing.finished_within(WRITE_GRACE_SECONDS):
            step, verdict = self.train(self.opening)
        self.weights.close()
        self.status.close()
        for rewards in self.resources.rewards.values():
            rewards.close()
        for conversations in self.resources.conversations.values():
            conversations.close()
        return self._last_words(step, verdict)

    def train(self, opening: Opening) -> tuple[int, Verdict]:
        """The steps after that of the opening; returns the last one and the verdict on it."""
        done = opening.step
        if done >= self.plan.spec.stop.steps:
            return done, Verdict(done, cause="already finished")
        self.weights.open(opening.meeting)
        if self.lag:
            self.take_weights(done - self.lag)
        else:
            self.send_kept_versions(opening)
            self.sync_weights(done)
        self.first_reported = done if opening.owes_validation else done + 1
        if done == 0 and self.plan.spec.validates:
            self.first_reported = 0
            if self.leases is not None:
                self.leases.open_validation(0)
            self.figures.add_report(self.validate(0))
            self.report(0)
        self.open_leases(done, validates=opening.owes_validation)
        self.begin()
        step, end = done, StepEnd()
        while not end.is_last:
            step += 1
            end = self.step(step)
        if self.lag or self.leases is not None:
            self.validate_late(step, end)
        return step, self.await_verdict(step)

    def begin(self) -> None:
        """The first step begins now: what the opening moved and took is not part of it."""
        self.client.statistics()
        self.figures.begin()

    def step(self, step: int) -> StepEnd:
        """One training step, or one generation step of a group that is ahead of training; how it ended."""
        with self.profiler.profiled(step):
            self.handover.begin_step(step)
            if self.lag:
                self.stage_weights(step)
            for plan, stage in self.schedule:
                self.run_stage(plan, stage, step)
            self.figures.add(self.handover.end_step())
            if self.figures.role == "generators":
                trained = max(self.opening.step, step - 1 - self.lag)
                self.figures.add(groups_in_flight(step, trained, self.plan.spec.data.batch_size))
            if self.leases is not None and self.is_validated(step - 1 - self.plan.staleness):
                self.report_validation(step - 1 - self.plan.staleness)
            end = self.await_end(step)
            if self.lag and not end.is_last:
                self.follow(step - self.lag)
            if not self.lag:
                self.exchange_weights(step, end)
            if end.saves:
                self.save(step)
            if end.is_last:
                self.await_written()
        self.report(step)
        return end

    def run_stage(self, plan: StagePlan, stage: Stage, step: int) -> None:
        """Take its rows, run it, hand on what it made."""
        self.status({"stage": plan.name, "step": step, "state": "waiting"})
        with self.figures.watched(f"{plan.name}: take rows"):
            batch = self.handover.take(plan, step)
        self.status({"stage": plan.name, "step": step, "state": "running"})
        context, policy = self._context(plan, step), self.plan.policy_of(plan.name)
        generates = plan.run in GENERATING and plan.generated_in is None
        with self.profiler.profiled_stage(step, plan.name), self.figures.timed(plan.name) as facts:
            if generates:
                begin_generation(self.resources.train_engines.values())
            result = stage.run(batch, context)
            facts |= times_of(result.metrics)
        label = self.plan.label_of_stage(plan.name)
        self.figures.add(result.metrics, result.samples, label)
        if context.copy.is_leader and plan.generated_in is None:
            several, decode = self.plan.rows_per_trajectory, partial(self._decode_token, policy)
            first_row = (step - 1) * self.plan.spec.num_rows * several
            samples = token_samples(
                result.batch, decode, first_row=first_row, rows_per_trajectory=several,
                num_agents=self.plan.spec.num_agents,
            )  # fmt: skip
            self.figures.add({}, samples, label)
        with self.figures.watched(f"{plan.name}: give rows"):
            self.handover.give(plan, step, result.batch)
        if generates and self.resources.train_engines:
            engines = [self.resources.rollout_engines[model] for model in plan.models]
            end_generation(engines, gets_weights=self.gets_weights(step))

    # ---- weights

    @property
    def lag(self) -> int:
        """Steps that this group may be ahead of training: 0 unless it only generates, in a job with a staleness."""
        return self.plan.staleness if self.resources.rollout_engines else 0

    def gets_weights(self, step: int) -> bool:
        """Whether this group generates again with others than it has in a step."""
        if self.lag:
            return self.generating_version(step + 1) != self.version
        return policy_version(self.plan.spec, step) == step

    def exchange_weights(self, step: int, end: StepEnd) -> None:
        """What the end of a step does about weights in a group that keeps pace with training."""
        if end.syncs and policy_version(self.plan.spec, step) == step:
            self.sync_weights(step)
        if self.leases is not None:
            self.open_leases(step, validates=end.validates, is_last=end.is_last)
        elif end.validates:
            self.figures.add_report(self.validate(step))

    def open_leases(self, trained: int, *, validates: bool, is_last: bool = False) -> None:
        """Guests may draw, and first validate, with the weights that a step left behind: where this worker owns
        leases."""
        if self.leases is None:
            return
        if validates:
            self.leases.open_validation(trained)
        if not is_last:
            self.leases.open(trained)

    def sync_weights(self, step: int) -> None:
        """The weights that `step` left behind, to the engines that sample with them. Where that is this process it
        generates next, and its engine may take memory for its copy already."""
        spec = self.plan.spec
        with self.figures.watched("weights"):
            if self.resources.rollout_engines:
                begin_generation(self.resources.train_engines.values())
            self.figures.add(self.weights.sync(policy_version(spec, step), versions_in_flight(spec, step)))

    def send_kept_versions(self, opening: Opening) -> None:
        """Where the job goes on: the versions that the steps in flight are drawn with, from its checkpoint."""
        sent = list[int]()
        for version, part in self.checkpoints.versions(opening):
            self.weights.send_again(version, sent, part)
            sent.append(version)

    def take_weights(self, trained: int) -> None:
        """As a generator: the weights that a training step left behind, unless this rank has them."""
        version = self.generating_version(trained + self.lag + 1)
        if version != self.version:
            self.version = version
            with self.figures.watched("weights"):
                self.figures.add(self.weights.sync(version))

    def stage_weights(self, step: int) -> None:
        """As a generator: while `step` is drawn the weights that draw the next one may come. Those were left behind by
        a training step before this one, so that they are sent, though this be the last."""
        version = self.generating_version(step + 1)
        if version != self.version:
            self.weights.stage(version)

    def generating_version(self, step: int) -> int:
        """The version that a generation step draws with."""
        spec = self.plan.spec
        oldest = policy_version(spec, self.opening.step) if spec.checkpoint.versions == "Redraw" else 0
        return generating_version(spec, step, oldest=oldest)

    def follow(self, trained: int) -> None:
        """As a generator: what the end of a training step asks for, `lag` generation steps later. Its validation
        precedes the generation that draws with its weights."""
        self.take_weights(trained)
        if self.is_validated(trained):
            self.report_validation(trained)

    def validate_late(self, last: int, end: StepEnd) -> None:
        """As a generator, or for guests, after the last step of the job: the validations that are still to come."""
        spec = self.plan.spec
        for trained in range(last - self.plan.staleness, last + 1):
            is_sent = (trained < last or end.syncs) and policy_version(spec, trained) == trained
            if end.validates if trained == last else self.is_validated(trained):
                if self.lag:
                    self.take_weights(trained)
                self.report_validation(trained)
            elif self.lag and is_sent and trained > self.version:
                self.weights.pass_over(trained)

    def is_validated(self, trained: int) -> bool:
        """Whether a training step that was not the last is still to be validated."""
        if trained == self.opening.step:
            return self.opening.owes_validation
        end = end_of(trained, self.plan.spec, Verdict(), keeps_checkpoints=False)
        return end.validates and trained > self.opening.step

    def report_validation(self, step: int) -> None:
        """As a generator, or for guests: this rank's share of the validation of a step that was reported before."""
        self.control.report(step, self.validate(step), VALIDATION)

    # ---- the end of a step

    def await_end(self, step: int) -> StepEnd:
        """How the step ends, by the verdict that governs it: that on an earlier one, which is normally there."""
        verdict = Verdict(self.opening.last_step, cause=self.opening.cause)
        governor = governing(step, delay=self.plan.verdict_delay, first=self.first_reported)
        if governor is not None:
            verdict = self.await_verdict(governor)
        return end_of(step, self.plan.spec, verdict, keeps_checkpoints=self.environment.keeps_checkpoints)

    def await_verdict(self, step: int) -> Verdict:
        self.status({"stage": "verdict", "step": step, "state": "waiting"})
        with self.figures.timed("verdict_wait"):
            return self.control.verdict(step)

    def validate(self, step: int) -> StepReport:
        """This rank's share of the validation of a training step. Ranks that neither generate nor own leases have none,
        and wait for no one."""
        if self.leases is not None:
            self.status({"stage": "validation", "step": step, "state": "waiting"})
            with self.figures.outside_of_steps(), self.figures.watched("validation"):
                return self.leases.validation(step)
        result = StepReport()
        if not self.validations:
            return result
        with self.figures.outside_of_steps(), self.figures.watched("validation"):
            begin_generation(self.resources.train_engines.values())
            for policy, validation in self.validations.items():
                share = validation.run(self._take_piece(policy, step))
                result = merged(result, report_of(*share, self._validation_label(policy)))
        return result

    def _validation_label(self, policy: str) -> str | None:
        """A team is validated as one."""
        return None if self.plan.spec.is_team_of_policies else self.plan.label_of(policy)

    def _take_piece(self, policy: str, step: int) -> TakePiece | None:
        """Where generators are ahead of training and take leases, they lease a validation, too: under the generation
        step that it precedes."""
        if not self.lag:
            return None
        stage = next(plan for plan, _ in self.schedule if plan.run in GENERATING and policy in plan.models)
        if not self.plan.is_leased(stage):
            return None
        copy, leases = self.resources.meshes[stage.mesh], self.client.leases(stage.name)
        return partial(take_lease, copy, leases, step + self.lag + 1, VALIDATION_ROUND)

    def save(self, step: int) -> None:
        """This rank's part of a checkpoint. It is written while the next steps run, and the lead commits it once every
        rank has reported the step and written its part."""
        self.status({"stage": "checkpoint", "step": step, "state": "running"})
        self.await_written()
        spec = self.plan.spec
        versions = versions_in_flight(spec, step) if spec.checkpoint.versions == "Keep" else ()
        with self.figures.outside_of_steps(), self.figures.timed("checkpoint"):
            pinned = self.weights.pin(versions)
            self.checkpoints.save(step, self.control.active_seconds, pinned, written=self.weights.unpin)

    def await_written(self) -> None:
        """Until nothing is left to be written of the checkpoint before. Raises StorageError."""
        with self.figures.outside_of_steps(), self.figures.timed("checkpoint_wait"):
            self.checkpoints.writing.wait()

    def report(self, step: int) -> None:
        """Hand in what was measured since the last report; what that takes is part of the next. Raises StorageError
        where a checkpoint could not be written."""
        self.status({"stage": "report", "step": step, "state": "running"})
        self.checkpoints.writing.check()
        for seconds in self.checkpoints.writing.take_seconds():
            self.figures.add({"time/checkpoint_write_seconds": mean(seconds)})
        # bytes add up over workers, waits are averaged
        self.figures.add(
            data_metrics(self.client.statistics()) | (self.leases.counts() if self.leases is not None else {})
        )
        report = self.figures.take(is_step=step > 0)
        with self.figures.timed("control"):
            self.control.report(step, report)

    @property
    def plan(self) -> Plan:
        return self.environment.plan

    def _context(self, stage: StagePlan, step: int) -> StageContext:
        spec = self.plan.spec
        mesh = self.resources.meshes[stage.mesh]
        return StageContext(
            step=step,
            seed=spec.seed,
            job=spec,
            decode=partial(self._decode, self.plan.policy_of(stage.name)),
            reduce=mesh.sum,
            exchange=mesh.exchange,
            copy=mesh,
            dp_rank=stage.mesh.dp_rank(self.environment.rank),
            dp_size=stage.mesh.dp,
            leases=self.client.leases(stage.name) if self.plan.is_leased(stage) else None,
            received=self.received if stage.generated_in is not None else None,
        )

    def _decode(self, policy: str, ids: np.ndarray) -> str:
        return str(self.resources.tokenizers[policy].decode(ids, skip_special_tokens=True))

    def _decode_token(self, policy: str, ids: np.ndarray) -> str:
        """A stage whose rows nobody reads has no tokenizer, and never gets here."""
        return str(self.resources.tokenizers[policy].decode(ids))

    def _last_words(self, step: int, verdict: Verdict) -> LastWords:
        code = ExitCode.STOPPED if verdict.stopped else ExitCode.DONE
        checkpoint = step if self.environment.keeps_checkpoints else None
        return LastWords(int(code), step, checkpoint, verdict.cause, self.environment.name)
