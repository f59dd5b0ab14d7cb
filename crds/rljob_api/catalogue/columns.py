"""What each built-in stage reads and writes in one particular job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rljob_api.catalogue.algorithms import BASELINE_REWARDS, ESTIMATORS, LOSSES
from rljob_api.v1alpha1 import RLJobSpec

ROLLOUT_COLUMNS = (
    "prompt_ids",
    "response_ids",
    "response_mask",
    "rollout_log_probs",
    "policy_version",
    "last_policy_version",
    "token_versions",
    "truncated",
    "source",
)
"""What Rollout always writes.  What its plan writes besides are columns of the data, as text. Versions are those of the
weights: of the first and the last token of a row, and of each."""

ROUTES = ("prompt_routed_experts", "routed_experts")
"""What Rollout writes besides where training replays routes: the experts that each layer with some chose, for every
token of a prompt, once for its group, and for the position that every response token was drawn from."""

IMAGES = "images"
"""What Rollout writes besides of models that see: the encoded pictures and videos of a prompt, packed, once for its
group."""

STATE = "state"
"""What a simulator measured before a decision, of jobs with one: float32, as many numbers in every row."""

SUCCESS, SUCCESS_AT_END, FINISH_STEP = "success", "success_at_end", "finish_step"
"""What is said of an episode on each of its rows: whether it succeeded at any step, uint8, and at its last one, uint8;
and the step that succeeded first, from 1, or as many as there were, int64."""

EPISODE_COLUMNS = (SUCCESS, SUCCESS_AT_END, FINISH_STEP)
"""What generation writes besides in jobs with a simulator."""

VIDEO_EMBEDDING, TASK_ID = "video_embedding", "task_id"
"""What generation writes besides where videos are encoded: what the encoder makes of an episode's, float32, on the last
of its rows, with no numbers where there is no embedding; and a number of its task, int64, equal for equal tasks."""

PROGRESS_REWARDS = "progress_rewards"
"""SRPO's reward of an episode, on each of its rows, in place of the job's."""

ROW_WEIGHTS = "row_weights"
"""How often PF-PPO's draw took a row, which Sample writes and a loss counts it."""

STEP_REWARDS = "step_rewards"
"""What of a row's reward is at each of its tokens: 0 but where a step of the answer ends. What is left of it is at the
last."""

KEPT = "kept"
"""Whether a row takes part in what is learnt, which a filter of the user's own writes and every stage after it that
learns reads."""

ENVIRONMENT_REWARD = "environment_reward"
"""The sum of what a trajectory's world said of it, on each of its rows, of jobs with conversations."""

TURN_REWARDS = "turn_rewards"
"""What of it is at each response token: 0 but at the last token of a turn that was rewarded."""

MESSAGES = "messages"
"""Who said what in a trajectory, as JSON: at its last row, and empty at the others."""

CONVERSATION_COLUMNS = (KEPT, ENVIRONMENT_REWARD, TURN_REWARDS, MESSAGES, "turn_ids", "agent_ids")
"""What generation writes besides in jobs with conversations: a trajectory that failed is not kept."""

AGENT = "agent"
"""What generation writes besides in jobs with agents, and reward functions may read: the name of who acts in a row."""

_TOKENS = ("prompt_ids", "response_ids")


@dataclass(frozen=True)
class Columns:
    """What a stage reads and writes in one particular job."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    """Read only when an upstream stage writes them."""


def data_columns(spec: RLJobSpec) -> tuple[str, ...]:
    """Columns of the data that are carried along: those that rewards need, and those a Rollout lists in `writes`."""
    for_rewards = [column for reward in spec.rewards for column in reward.data_columns]
    stages = spec.dag.stages if spec.dag is not None else ()
    listed = [column for stage in stages if stage.run in ("Rollout", "Sample") for column in stage.writes]
    written = (*ROLLOUT_COLUMNS, *ROUTES, IMAGES, *conversation_columns(spec))
    return tuple(column for column in dict.fromkeys(for_rewards + listed) if column not in written)


def conversation_columns(spec: RLJobSpec) -> tuple[str, ...]:
    """What generation writes of trajectories that are played; none in other jobs."""
    if spec.rollout.played is None:
        return ()
    columns = CONVERSATION_COLUMNS + EPISODE_COLUMNS * (spec.rollout.simulator is not None) + states(spec)
    progress = (VIDEO_EMBEDDING, TASK_ID) * (spec.algorithm.progress is not None)
    return columns + progress + (AGENT,) * bool(spec.agents)


def task_columns(spec: RLJobSpec) -> tuple[str, ...]:
    """Columns of the data that generation reads: those that are carried along, and those of conversations alone."""
    played = spec.rollout.played
    of_tasks = () if played is None else played.columns
    return tuple(dict.fromkeys((*data_columns(spec), *of_tasks)))


def reward_columns_of_rows(spec: RLJobSpec) -> tuple[str, ...]:
    """Columns that reward functions find in every row besides `source`."""
    of_trajectories = () if spec.rollout.played is None else (ENVIRONMENT_REWARD, MESSAGES)
    return data_columns(spec) + of_trajectories + (AGENT,) * bool(spec.agents)


def named_at(spec: RLJobSpec, column: str) -> str:
    """Where the job first names a column of the data that it reads: `spec.rewards[0].column`."""
    if column == spec.data.prompt_column:
        return "spec.data.promptColumn"
    if column == spec.data.images_column:
        return "spec.data.imagesColumn"
    if column == spec.data.videos_column:
        return "spec.data.videosColumn"
    for i, reward in enumerate(spec.rewards):
        if column == reward.column:
            return f"spec.rewards[{i}].column"
        if column in reward.columns:
            return f"spec.rewards[{i}].columns[{reward.columns.index(column)}]"
    for name, played in (("conversation", spec.rollout.conversation), ("simulator", spec.rollout.simulator)):
        if played is not None and column in played.columns:
            return f"spec.rollout.{name}.columns[{played.columns.index(column)}]"
    stages = spec.dag.stages if spec.dag is not None else ()
    return next(f"spec.dag.stages[{i}].writes" for i, stage in enumerate(stages) if column in stage.writes)


def model_rewards(model: str) -> str:
    """The column with what a model says of each row."""
    return f"{model}_rewards"


def spreads_rewards(spec: RLJobSpec) -> bool:
    """Whether some reward is at the steps of an answer."""
    return any(reward.spread == "Steps" for reward in spec.rewards)


def kl_in(spec: RLJobSpec, placement: Literal["Loss", "Reward"]) -> bool:
    """Whether the job has a KL penalty in this place."""
    return spec.algorithm.kl.coefficient > 0 and spec.algorithm.kl.placement == placement


def needs_baseline(spec: RLJobSpec) -> bool:
    """Whether advantages need the reward of the greedy response to each prompt."""
    return BASELINE_REWARDS in estimator_reads(spec)


def needs_sample(spec: RLJobSpec) -> bool:
    """Whether generating and rewarding a step's rows takes more than doing each once."""
    return spec.algorithm.sampling.dynamic or resamples(spec) or needs_baseline(spec)


def resamples(spec: RLJobSpec) -> bool:
    """Whether the rows of a step are drawn anew by their rewards."""
    return spec.algorithm.sampling.resampling is not None


def estimator_reads(spec: RLJobSpec) -> tuple[str, ...]:
    """Columns that the job's estimator reads besides rewards and mask."""
    advantage = spec.algorithm.advantage
    known = ESTIMATORS.get(advantage.estimator)
    return known.reads if known is not None else advantage.reads


def loss_reads(spec: RLJobSpec) -> tuple[str, ...]:
    """Columns that the job's policy loss reads besides mask and advantages."""
    loss = spec.algorithm.loss
    return LOSSES[loss.name].reads if loss.name in LOSSES else loss.reads


def corrects(spec: RLJobSpec) -> bool:
    """Whether the difference between rollout and old log-probabilities is corrected."""
    return spec.algorithm.correction is not None


def corrects_stale_only(spec: RLJobSpec) -> bool:
    """Whether a correction has to know which tokens were drawn with older weights."""
    correction = spec.algorithm.correction
    return correction is not None and correction.stale_only


def compares_with_old(spec: RLJobSpec) -> bool:
    """Whether the update means something else by the policy from before it than the policy as it is."""
    algorithm = spec.algorithm
    entry = LOSSES.get(algorithm.loss.name)
    return entry is None or entry.has_ratio or (kl_in(spec, "Loss") and algorithm.kl.estimator == "K3Weighted")


def computes_full_kl(spec: RLJobSpec) -> bool:
    """Whether the update computes the reference's distributions itself."""
    return spec.algorithm.kl.estimator == "Full" and spec.algorithm.kl.coefficient > 0


def replayed_routes(spec: RLJobSpec) -> tuple[str, ...]:
    """Columns of the routes that training takes from rollout; none where it finds its own."""
    return ROUTES if spec.training.router_replay == "Rollout" else ()


def pictures(spec: RLJobSpec) -> tuple[str, ...]:
    """The column of pictures; none where rows are text."""
    return (IMAGES,) * spec.sees


def states(spec: RLJobSpec) -> tuple[str, ...]:
    """The column of states; none where policies read none."""
    simulator = spec.rollout.simulator
    return (STATE,) * (simulator is not None and simulator.has_state)


def seen(spec: RLJobSpec) -> tuple[str, ...]:
    """What models read of a row besides its tokens."""
    return pictures(spec) + states(spec)


def rollout_columns(spec: RLJobSpec, _models: Sequence[str], _trained: bool) -> Columns:
    writes = ROLLOUT_COLUMNS + pictures(spec) + replayed_routes(spec) + conversation_columns(spec)
    return Columns(writes=writes + data_columns(spec))


def reward_columns(spec: RLJobSpec, _models: Sequence[str], _trained: bool) -> Columns:
    of_models = (model_rewards(reward.model) for reward in spec.rewards if reward.model is not None)
    reads = ("prompt_ids", "response_ids", "source", *pictures(spec), *reward_columns_of_rows(spec), *of_models)
    if spec.rollout.played is not None:
        reads += (KEPT,) + (TURN_REWARDS,) * spreads_rewards(spec)
    reads += ("token_versions",) * (spec.rollout.partial is not None)  # a sample shows where it was carried
    return Columns(reads=reads, writes=("rewards",) + (STEP_REWARDS,) * spreads_rewards(spec))


def progress_reward_columns(_spec: RLJobSpec, _models: Sequence[str], _trained: bool) -> Columns:
    return Columns(reads=(SUCCESS, VIDEO_EMBEDDING, TASK_ID), writes=(PROGRESS_REWARDS,), optional=(KEPT,))


def reward_model_columns(spec: RLJobSpec, models: Sequence[str], _trained: bool) -> Columns:
    return Columns(reads=(*_TOKENS, *data_columns(spec)), writes=tuple(map(model_rewards, models)))


def sample_columns(spec: RLJobSpec, _models: Sequence[str], _trained: bool) -> Columns:
    writes = [*ROLLOUT_COLUMNS, *pictures(spec), *replayed_routes(spec), *conversation_columns(spec)]
    writes += [*data_columns(spec), "rewards"]
    writes += [BASELINE_REWARDS] * needs_baseline(spec) + [ROW_WEIGHTS] * resamples(spec)
    return Columns(writes=tuple(writes))


def log_probs_columns(spec: RLJobSpec, _models: Sequence[str], trained: bool) -> Columns:
    if trained:
        return Columns(reads=(*_TOKENS, *seen(spec), *replayed_routes(spec)), writes=("old_log_probs",))
    return Columns(reads=(*_TOKENS, *seen(spec)), writes=("ref_log_probs",))


def values_columns(spec: RLJobSpec, _models: Sequence[str], _trained: bool) -> Columns:
    return Columns(reads=(*_TOKENS, *seen(spec)), writes=("values",))


def advantage_columns(spec: RLJobSpec, _models: Sequence[str], _trained: bool) -> Columns:
    reads = ["rewards", "response_mask", *estimator_reads(spec)]
    reads += ["old_log_probs", "ref_log_probs"] * kl_in(spec, "Reward")
    reads += [STEP_REWARDS] * spreads_rewards(spec) + ["truncated"] * spec.algorithm.mask_truncated
    reads += ["values"] * (spec.algorithm.critic is not None) + ["turn_ids"] * bool(spec.agents)
    writes = ["advantages"] + ["returns"] * (spec.algorithm.critic is not None)
    writes += ["loss_mask"] * spec.algorithm.mask_truncated
    return Columns(reads=tuple(dict.fromkeys(reads)), writes=tuple(writes), optional=(KEPT,))


def update_policy_columns(spec: RLJobSpec, _models: Sequence[str], _trained: bool) -> Columns:
    reads = [*_TOKENS, *seen(spec), *replayed_routes(spec), "response_mask", "advantages", *loss_reads(spec)]
    reads += ["ref_log_probs"] * (kl_in(spec, "Loss") and not computes_full_kl(spec))
    reads += ["loss_mask"] * spec.algorithm.mask_truncated + [ROW_WEIGHTS] * resamples(spec)
    reads += ["old_log_probs", "rollout_log_probs"] * corrects(spec) + ["token_versions"] * corrects_stale_only(spec)
    # without a correction they are compared all the same, which metrics report, of tokens of each age; a row that is
    # not carried has one version
    optional = ["old_log_probs", "rollout_log_probs", KEPT]
    if spec.rollout.partial is not None:
        optional.append("token_versions")
    elif spec.rollout.max_staleness > 0:
        optional.append("policy_version")
    optional = [name for name in optional if name not in reads]
    return Columns(reads=tuple(dict.fromkeys(reads)), optional=tuple(optional))


def update_critic_columns(spec: RLJobSpec, _models: Sequence[str], _trained: bool) -> Columns:
    reads = [*_TOKENS, *seen(spec), "response_mask", "values", "returns"]
    reads += ["loss_mask"] * spec.algorithm.mask_truncated + [ROW_WEIGHTS] * resamples(spec)
    return Columns(reads=tuple(reads), optional=(KEPT,))
