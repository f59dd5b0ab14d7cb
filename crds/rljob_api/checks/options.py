"""Do options contradict each other?"""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.catalogue import ESTIMATORS, STAGES
from rljob_api.checks.subject import Subject, problem
from rljob_api.exit_codes import ExitCode
from rljob_api.problem import Problem

NEVER_RETRIED = (ExitCode.INVALID_JOB, ExitCode.BAD_DATA)


def check_algorithm(subject: Subject) -> Iterator[Problem]:
    """Options that the estimator does not look at."""
    algorithm = subject.spec.algorithm
    estimator = ESTIMATORS.get(algorithm.advantage.estimator)
    if estimator is None:
        return
    if algorithm.group_size < estimator.min_group_size:
        message = (
            f"{estimator.name} compares the responses to one prompt, so one response says nothing: every advantage is 0"
        )
        yield problem(
            "spec.algorithm.groupSize", algorithm.group_size, message, "Write 2 or more, or use the estimator GAE."
        )
    if algorithm.critic is not None and not estimator.has_critic:
        found, fix = algorithm.critic.to_json(), "Leave critic out, or use the estimator GAE."
        yield problem("spec.algorithm.critic", found, f"the estimator {estimator.name} has no critic", fix)


def check_loss(subject: Subject) -> Iterator[Problem]:
    """Bounds of the policy loss."""
    loss = subject.spec.algorithm.loss
    if loss.clip_high < loss.clip_low:
        message = f"the upper bound is tighter than clipLow {loss.clip_low}, which lets the policy only forget"
        yield problem("spec.algorithm.loss.clipHigh", loss.clip_high, message, f"Write {loss.clip_low} or more.")
    if loss.dual_clip is not None and loss.dual_clip <= 1:
        message = "the bound must be above 1, or it replaces the loss of tokens that are not clipped at all"
        yield problem("spec.algorithm.loss.dualClip", loss.dual_clip, message, "Write 3.0, or leave it out.")


def check_kl(subject: Subject) -> Iterator[Problem]:
    """The KL penalty and the stages that feed it."""
    kl = subject.spec.algorithm.kl
    if kl.target is not None and kl.coefficient == 0:
        message = "a coefficient that starts at 0 stays 0, so it cannot adapt"
        yield problem("spec.algorithm.kl.target", kl.target, message, "Set coefficient above 0, or leave target out.")
    if kl.placement == "Reward" and kl.estimator == "K3Weighted":
        message = "the weight corrects the gradient of a loss, and a penalty in the reward has none"
        yield problem("spec.algorithm.kl.estimator", kl.estimator, message, "Write K1.")
    for stage in subject.resolution.stages.values():
        if kl.coefficient == 0 and "ref_log_probs" in stage.columns.writes and stage.built_in is not None:
            yield problem(
                subject.stage_path(stage.name),
                stage.name,
                "the stage computes reference log-probabilities, but kl.coefficient is 0, so nothing uses them",
                "Leave the stage out, or set kl.coefficient above 0.",
            )


def check_sampling(subject: Subject) -> Iterator[Problem]:
    """Training needs samples from the full distribution, whose log-probabilities the loss corrects for."""
    rollout = subject.spec.rollout
    if rollout.temperature == 0:
        message = "training needs sampled responses; at temperature 0 a group is one response many times"
        yield problem("spec.rollout.temperature", 0, message, "Write 1.0. validation.temperature may be 0.")
    if rollout.top_p < 1:
        yield problem("spec.rollout.topP", rollout.top_p, _TRUNCATED, "Write 1.0.")
    if rollout.top_k > 0:
        yield problem("spec.rollout.topK", rollout.top_k, _TRUNCATED, "Write 0.")


_TRUNCATED = "log-probabilities of the full distribution would not be those the tokens were sampled with"


def check_optimizer(subject: Subject) -> Iterator[Problem]:
    """Optimizer settings."""
    for i, beta in enumerate(subject.spec.training.betas):
        if not 0 <= beta < 1:
            yield problem(
                f"spec.training.betas[{i}]", beta, "a decay rate is at least 0 and below 1", "Write [0.9, 0.999]."
            )
    critic, steps = subject.spec.algorithm.critic, subject.spec.stop.steps
    if critic is not None and critic.warmup_steps >= steps:
        message = f"the policy never learns: the critic warms up for all of stop.steps {steps}"
        yield problem("spec.algorithm.critic.warmupSteps", critic.warmup_steps, message, f"Write less than {steps}.")


def check_validation(subject: Subject) -> Iterator[Problem]:
    """What looks at validation rewards needs validation data."""
    spec = subject.spec
    if spec.data.validation:
        return
    fix = "Add data.validation, or leave this out."
    if spec.validation.every_steps:
        message = "there is no data to validate on"
        yield problem("spec.validation.everySteps", spec.validation.every_steps, message, fix)
    if spec.checkpoint.keep_best:
        message = "the best checkpoint is told by validation rewards, and there is no data to validate on"
        yield problem("spec.checkpoint.keepBest", spec.checkpoint.keep_best, message, fix)


def check_rewards(subject: Subject) -> Iterator[Problem]:
    """Reward functions and the stage that calls them come together."""
    runs = {stage.spec.run: stage for stage in subject.resolution.stages.values()}
    if "Reward" in runs and not subject.spec.rewards:
        message = f"stage {runs['Reward'].name} has no reward function to call"
        yield problem("spec.rewards", None, message, "Add one, such as {name: correct, run: my_rewards:correct}.")
    if "Reward" not in runs and subject.spec.rewards and any(run in STAGES for run in runs):
        message = "no stage calls the reward functions"
        yield problem(
            "spec.rewards", [reward.name for reward in subject.spec.rewards], message, "Add a Reward stage to the dag."
        )


def check_one_of(subject: Subject) -> Iterator[Problem]:
    """Fields of which only one may be set, or one must be."""
    spec = subject.spec
    if spec.code is not None and (spec.code.config_map is None) == (spec.code.persistent_volume_claim is None):
        message = "code comes from exactly one place"
        yield problem(
            "spec.code", spec.code.to_json(), message, "Set configMap or persistentVolumeClaim, or leave code out."
        )
    for i, group in enumerate(spec.worker_groups):
        if group.topology is not None and group.topology.preferred and group.topology.required:
            message = "a topology is preferred or required, not both"
            yield problem(f"spec.workerGroups[{i}].topology", group.topology.to_json(), message, "Keep one of the two.")
    for i, variable in enumerate(spec.env):
        if (variable.value is None) == (variable.value_from is None):
            message = "a variable has exactly one of value and valueFrom"
            yield problem(f"spec.env[{i}]", variable.name, message, "Keep one of the two.")
        elif variable.value_from is not None:
            given = [place for place, value in variable.value_from.to_json().items() if value is not None]
            if len(given) != 1:
                message = "a value comes from exactly one place"
                fix = "Keep one of secretKeyRef, configMapKeyRef, fieldRef and resourceFieldRef."
                yield problem(f"spec.env[{i}].valueFrom", given, message, fix)


def check_failure_rules(subject: Subject) -> Iterator[Problem]:
    """Rules that match nothing in particular, or retry what can never work."""
    for i, rule in enumerate(subject.spec.failure_policy.rules):
        path = f"spec.failurePolicy.rules[{i}]"
        if not rule.on_pod_conditions and not rule.on_exit_codes:
            fix = "Add onPodConditions or onExitCodes."
            yield problem(path, rule.action, "the rule says nothing about when it holds", fix)
        for code in sorted(set(rule.on_exit_codes).intersection(NEVER_RETRIED)):
            if rule.action == "Restart":
                message = f"code {code} means that {ExitCode(code).meaning}; a restart would end the same way"
                yield problem(f"{path}.onExitCodes", code, message, "Leave the code out.")
