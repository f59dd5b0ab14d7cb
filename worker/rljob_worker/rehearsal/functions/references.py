"""The functions that a job names as `module:function`, and what they will be called with. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.catalogue.columns import reward_columns_of_rows
from rljob_api.catalogue.stages import USER_STAGE
from rljob_api.checks.generation.conversations import tool_names
from rljob_api.v1alpha1 import CallLimitsSpec, ConversationSpec, RLJobSpec
from rljob_api.v1alpha1.conversation import SHIPPED_CONVERSATIONS
from rljob_worker.embodied.simulators.job_pool import drawing_variables
from rljob_worker.rehearsal.functions.reference import (
    REWARD_ARGUMENTS,
    SHIPPED,
    FunctionReference,
    ImportConfinement,
)
from rljob_worker.rewards.forms import SHOWN, row_columns
from rljob_worker.sandbox.confinement.confine import strictest

STAGE_ARGUMENTS = ("batch", "context")
NEEDS_COLUMN = ("exact_match", "final_number", "math_answer")
"""Shipped rewards that compare with a column of the data."""


def references_of(spec: RLJobSpec) -> list[FunctionReference]:
    """In the order of the job."""
    return [*_rewards(spec), *_parts(spec), *_stages(spec), *_conversation(spec), *_simulator(spec)]


def without_column(spec: RLJobSpec) -> list[str]:
    """Paths of shipped rewards that compare with a column, and have none."""
    ours = {f"{SHIPPED}{name}" for name in NEEDS_COLUMN}
    return [
        f"spec.rewards[{i}].column"
        for i, reward in enumerate(spec.rewards)
        if reward.run in ours and reward.column is None
    ]


def _rewards(spec: RLJobSpec) -> Iterator[FunctionReference]:
    mode = strictest(reward.confinement for reward in spec.rewards)
    for i, reward in enumerate(spec.rewards):
        if reward.model is not None:
            continue
        owner = f'reward "{reward.name}"'
        seen = SHOWN if spec.sees else ()
        columns = tuple(row_columns(reward.column, (*reward_columns_of_rows(spec), *seen)))
        options = dict(reward.options)
        path = f"spec.rewards[{i}].run"
        yield FunctionReference(
            path,
            owner,
            reward.run,
            REWARD_ARGUMENTS,
            options,
            reward.asks_service,
            columns,
            confinement=None if mode == "Off" else ImportConfinement(mode),
        )


def _parts(spec: RLJobSpec) -> Iterator[FunctionReference]:
    """Parts of the algorithm that a job may name. Their options are a field of their own, which no signature
    declares."""
    algorithm = spec.algorithm
    for path, owner, run, arguments in (
        ("advantage.estimator", "estimator", algorithm.advantage.estimator, ("samples", "options", "reduce")),
        ("loss.name", "policy loss", algorithm.loss.name, ("tokens", "options")),
        ("loss.aggregation", "aggregation", algorithm.loss.aggregation, ("max_response_tokens",)),
        ("kl.estimator", "KL estimator", algorithm.kl.estimator, ("log_probs", "ref_log_probs", "old_log_probs")),
    ):
        if USER_STAGE.match(run):
            yield FunctionReference(f"spec.algorithm.{path}", owner, run, arguments, {})


def _stages(spec: RLJobSpec) -> Iterator[FunctionReference]:
    for i, stage in enumerate(spec.dag.stages if spec.dag is not None else ()):
        if USER_STAGE.match(stage.run):
            owner = f"stage {stage.name}"
            yield FunctionReference(f"spec.dag.stages[{i}].run", owner, stage.run, STAGE_ARGUMENTS, dict(stage.options))


def _conversation(spec: RLJobSpec) -> Iterator[FunctionReference]:
    """Who plays, in the worker itself; tools and environments, confined as the job has them called."""
    conversation, path = spec.rollout.conversation, "spec.rollout.conversation"
    if conversation is None:
        return
    if not conversation.run_function.startswith(SHIPPED_CONVERSATIONS):
        yield FunctionReference(
            f"{path}.run", "rollout.conversation.run", conversation.run_function, (), {}, kind="run"
        )
    for i, tool in enumerate(conversation.tools):
        owner, confinement = tool_names(conversation)[i], _confinement(conversation, tool)
        options = dict(tool.options)
        yield FunctionReference(
            f"{path}.tools[{i}].run", owner, tool.run, (), options, kind="tool", confinement=confinement
        )
    for i, item in enumerate(conversation.environments):
        owner, confinement = item.name, _confinement(conversation, item)
        options = dict(item.options)
        yield FunctionReference(
            f"{path}.environments[{i}].run", owner, item.run, (), options, kind="environment", confinement=confinement
        )


def _simulator(spec: RLJobSpec) -> Iterator[FunctionReference]:
    """What makes an environment, and what encodes its videos."""
    simulator, path = spec.rollout.simulator, "spec.rollout.simulator"
    if simulator is None:
        return
    yield FunctionReference(
        f"{path}.run",
        "rollout.simulator.run",
        simulator.run,
        (),
        dict(simulator.options),
        kind="simulator",
        variables=drawing_variables(simulator, 0, {}),
    )
    video = simulator.video
    if video is not None and video.run is not None:
        owner = "rollout.simulator.video.run"
        yield FunctionReference(f"{path}.video.run", owner, video.run, ("frames",), dict(video.options))


def _confinement(conversation: ConversationSpec, item: CallLimitsSpec) -> ImportConfinement | None:
    mode = conversation.confinement_of(item)
    return None if mode == "Off" else ImportConfinement(mode, tuple(item.environment_variables), tuple(item.readable))
