"""Do options contradict each other?"""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.catalogue.optimizers import OPTIMIZERS
from rljob_api.checks.subject import Subject, problem
from rljob_api.v1alpha1 import RLJobSpec, TrainingSpec
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_api.vocabulary.problem import Problem, suggestion

TEMPLATE_OWN = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Names of `apply_chat_template` of transformers that are not arguments of the template, or that are not the job's."""

SLOWEST_BFLOAT16 = 0.996
"""The largest decay rate whose mean reaches 0 in BFloat16: from a number to the next smaller one are 1/256 to 1/128 of
it, and what is less than half of that is rounded away, so that 1 - beta has to be 1/256 at least."""

NEVER_RETRIED = (ExitCode.INVALID_JOB, ExitCode.BAD_DATA)


def check_optimizer(subject: Subject) -> Iterator[Problem]:
    """Optimizer settings."""
    yield from OPTIMIZERS.problems("spec.training.optimizer.name", subject.spec.training.optimizer.name)
    for i, beta in enumerate(subject.spec.training.betas):
        if not 0 <= beta < 1:
            yield problem(
                f"spec.training.betas[{i}]", beta, "a decay rate is at least 0 and below 1", "Write [0.9, 0.999]."
            )
    yield from _check_states(subject.spec.training)
    yield from _check_schedule(subject.spec)
    critic, steps = subject.spec.algorithm.critic, subject.spec.stop.steps
    if critic is not None and critic.warmup_steps >= steps:
        message = f"the policy never learns: the critic warms up for all of stop.steps {steps}"
        yield problem("spec.algorithm.critic.warmupSteps", critic.warmup_steps, message, f"Write less than {steps}.")


def _check_schedule(spec: RLJobSpec) -> Iterator[Problem]:
    """A schedule's own length belongs to one that falls, and reaches to the end."""
    training, path = spec.training, "spec.training.scheduleSteps"
    if training.schedule_steps is None:
        return
    if training.schedule == "Constant":
        message = "with training.schedule Constant the learning rate has no steps in which to fall"
        yield problem(path, training.schedule_steps, message, "Leave it out, or write schedule: Linear or Cosine.")
    elif training.schedule_steps < spec.stop.steps:
        message = f"the learning rate is 0 from there on, and stop.steps is {spec.stop.steps}"
        yield problem(path, training.schedule_steps, message, f"Write at least {spec.stop.steps}.")


def _check_states(training: TrainingSpec) -> Iterator[Problem]:
    """Number formats in which the optimizer's means can follow what they average."""
    states = training.optimizer.states
    if states != "Float32" and training.precision == "Float64":
        message = "with training.precision Float64 the optimizer's states are in Float64"
        yield problem("spec.training.optimizer.states", states, message, "Write Float32, or another precision.")
    for i, beta in enumerate(training.betas if states == "BFloat16" else ()):
        if SLOWEST_BFLOAT16 < beta < 1:
            message = (
                f"a mean that keeps {beta:g} of itself in every step does not change in BFloat16, which rounds to "
                "1/256 of a number"
            )
            fix = f"Write at most {SLOWEST_BFLOAT16}, such as [0.9, 0.99], or training.optimizer.states: Int8."
            yield problem(f"spec.training.betas[{i}]", beta, message, fix)


def check_profile(subject: Subject) -> Iterator[Problem]:
    """What is profiled is there."""
    profile, last = subject.spec.training.profile, subject.spec.stop.steps
    for i, step in enumerate(profile.steps):
        if step > last:
            message = f"the job ends at stop.steps {last}, so this step is never profiled"
            yield problem(f"spec.training.profile.steps[{i}]", step, message, f"Write a step from 1 to {last}.")
    most = max(group.replicas * group.accelerator.count for group in subject.spec.worker_groups)
    for i, rank in enumerate(profile.ranks):
        if rank >= most:
            message = f"no worker group has more than {most} workers, and they are numbered from 0"
            yield problem(f"spec.training.profile.ranks[{i}]", rank, message, f"Write a number from 0 to {most - 1}.")
    names = list(subject.resolution.stages)
    for i, name in enumerate(profile.stages):
        if name not in names:
            path = f"spec.training.profile.stages[{i}]"
            yield problem(path, name, "there is no such stage", suggestion(name, names))


def check_validation(subject: Subject) -> Iterator[Problem]:
    """What looks at validation rewards needs validation data."""
    spec = subject.spec
    if spec.validates:
        return
    fix = "Add data.validation, or leave this out."
    if spec.validation.every_steps:
        message = "there is no data to validate on"
        yield problem("spec.validation.everySteps", spec.validation.every_steps, message, fix)
    if spec.validation.samples_per_prompt > 1:
        message = "there is no data to validate on"
        yield problem("spec.validation.samplesPerPrompt", spec.validation.samples_per_prompt, message, fix)
    if spec.checkpoint.keep_best:
        message = "the best checkpoint is chosen by validation rewards, and there is no data to validate on"
        yield problem("spec.checkpoint.keepBest", spec.checkpoint.keep_best, message, fix)


def check_reward_stage(subject: Subject) -> Iterator[Problem]:
    """Reward functions and the stage that calls them come together."""
    stages = subject.resolution.stages.values()
    callers = [stage.name for stage in stages if stage.spec.run in ("Reward", "Sample")]
    if callers and not subject.spec.rewards:
        message = f"stage {callers[0]} has no reward function to call"
        yield problem("spec.rewards", None, message, "Add one, such as {name: correct, run: my_rewards:correct}.")
    if not callers and subject.spec.rewards and any(stage.built_in is not None for stage in stages):
        message = "no stage calls the reward functions"
        yield problem(
            "spec.rewards", [reward.name for reward in subject.spec.rewards], message, "Add a Reward stage to the dag."
        )


def check_chat_template(subject: Subject) -> Iterator[Problem]:
    """Arguments of a chat template go to those that render texts, and are not what rljob itself passes to them."""
    policies = subject.spec.policies
    rendering = {*policies, *(reward.model for reward in subject.spec.rewards)}
    for i, model in enumerate(subject.spec.models):
        path = f"spec.models[{i}].chatTemplate"
        if model.chat_template and model.name not in rendering:
            names = " and ".join(policies)
            message = f"prompts are rendered by the chat template of {names}, so nobody looks at this one's"
            yield problem(path, model.chat_template, message, f"Write it under {names}.")
            continue
        for name, value in model.chat_template.items():
            if name in TEMPLATE_OWN:
                message = "this is passed to the template, or to what renders it, already"
                yield problem(f"{path}.{name}", value, message, "Leave it out.")


def check_one_of(subject: Subject) -> Iterator[Problem]:
    """Fields of which only one may be set, or one must be."""
    spec = subject.spec
    if spec.code is not None and (spec.code.config_map is None) == (spec.code.persistent_volume_claim is None):
        message = "code comes from exactly one place"
        yield problem(
            "spec.code", spec.code.to_json(), message, "Set configMap or persistentVolumeClaim, or leave code out."
        )
    if spec.storage is not None and not (spec.claim or spec.object_store):
        fix = "Set persistentVolumeClaim, objectStore or both, or leave storage out."
        yield problem("spec.storage", {}, "it names no place", fix)
    for i, group in enumerate(spec.worker_groups):
        if group.topology is not None and group.topology.preferred and group.topology.required:
            message = "a topology is preferred or required, not both"
            yield problem(f"spec.workerGroups[{i}].topology", group.topology.to_json(), message, "Keep one of the two.")
    for i, variable in enumerate(spec.env):
        if (variable.value is None) == (variable.value_from is None):
            message = "a variable has exactly one of value and valueFrom"
            fix = "Write one of the two." if variable.value is None else "Keep one of the two."
            yield problem(f"spec.env[{i}]", variable.name, message, fix)
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
