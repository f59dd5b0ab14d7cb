"""How a job generates."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.v1alpha1.conversation import ConversationSpec
from rljob_api.v1alpha1.simulator import SimulatorSpec
from rljob_api.vocabulary.model import ApiModel, Items, PartName

StopText = Annotated[str, Field(min_length=1, max_length=256)]
ServerURL = Annotated[str, Field(max_length=512, pattern=r"^https?://[^\s/?#@]+(/[^\s?#@]*)?$")]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class RolloutParallelism(ApiModel):
    """How one copy of the generating model is spread over workers; what is left of the group is data parallelism."""

    tensor: int = Field(default=1, ge=1)
    """Workers of one pod that share every layer: they divide accelerator.count, and the model's heads. Above 1 with
    VLLM only. Default 1."""


class EngineOptions(ApiModel):
    """Settings of the library that generates: VLLM has all of them, Transformers has enforceEager."""

    block_size: int | None = Field(default=None, ge=1)
    """Tokens in one block of the cache, all of which are shared by rows that begin alike, or none. On CPUs a multiple
    of 32. Unset: 32 on CPUs, elsewhere VLLM's choice."""

    max_batched_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of prompts and responses that one forward computes; longer prompts are computed in parts. On CPUs,
    where they are not, at least the longest prompt and response. Unset: VLLM's choice."""

    prefix_caching: bool | None = None
    """Whether what was computed for the beginning of a prompt is kept for others that begin alike, until the weights
    change. Unset: true."""

    enforce_eager: bool | None = None
    """Whether a device runs the model operation by operation, and no recorded graphs: a quicker start and slower
    tokens. CPUs do anyway, and Transformers with experts. Unset: false; true with Transformers and a model that
    sees."""

    batch_invariant: bool | None = None
    """Whether a row's last digits may not depend on what is computed beside it; slower, and not on CPUs. Unset:
    false."""

    speculative_tokens: int | None = Field(default=None, ge=1, le=16)
    """Tokens guessed ahead where a row repeats itself, and checked together: for long rows that quote. Not on CPUs.
    Unset: none."""


class PartialRolloutSpec(ApiModel):
    """Responses that a generation step does not finish go on in the next one, with its weights, so that no step waits
    for its longest: docs/long-tail.md."""

    tokens_per_round: int = Field(ge=1)
    """New tokens that a response may have in a round of generation. What has not ended then goes on in the next round;
    rounds repeat until a batch of groups is complete."""

    max_carries: int = Field(ge=1, le=1024)
    """How many generation steps a response may go on in after the one in which it began. It is cut off and marked
    truncated if it has not ended in the first round of the last of them."""


class MaxMismatchSpec(ApiModel):
    """How far log-probs of the rollout engine may be from those of training, as evidence that both computed the same
    policy on the same inputs: docs/vision.md."""

    probs_diff_max: float = Field(gt=0, le=1)
    """Largest difference of the probability of a token, `mismatch/probs_diff_max`, that is taken for rounding. In
    Float32 differences are below 0.0001."""

    steps: int = Field(default=1, ge=1, le=1024)
    """Number of steps in a row with a larger difference after which the job ends with exit code 65. Default 1."""


class RolloutServerSpec(ApiModel):
    """Servers that generate for engine HTTP, started by somebody else with the policy's model and left to this job
    alone: docs/engines.md. A token that they ask for is read from RLJOB_ROLLOUT_SERVER_TOKEN in `env`."""

    routes: Literal["SGLang", "VLLM"]
    """Whose routes they have: SGLang: /generate and /update_weights_from_disk. VLLM: /inference/v1/generate and those
    of a server in development mode."""

    urls: Items[ServerURL] = Field(min_length=1, max_length=1024)
    """One for each worker that generates, in the order of their ranks."""

    weights_directory: str = Field(min_length=1, max_length=1024, pattern=r"^/")
    """A folder that workers write and servers read under the same path, for the weights of each step."""

    tokens_per_call: int = Field(default=256, ge=1)
    """Tokens that a call asks for at most; what does not end within them goes on with the next call. What a call has
    sampled by then is lost where weights change under it. Default 256."""

    timeout_seconds: float = Field(default=600.0, gt=0, le=86400)
    """How long a server may say nothing to a call, loading weights included, and take until it first answers. Default
    600."""


class RolloutSpec(ApiModel):
    """How responses are generated."""

    engine: PartName = "Transformers"
    """The library that generates: Transformers; VLLM, which has to be installed (docs/engines.md); HTTP, which asks
    `server`; or one that an installed package brings (docs/extending.md). Default Transformers."""

    engine_options: EngineOptions = EngineOptions()
    """Settings of that library."""

    server: RolloutServerSpec | None = None
    """Where engine HTTP generates. Unset with every other engine."""

    max_response_tokens: int = Field(default=1024, ge=1)
    """The longest response, in tokens. Longer ones are cut off and marked truncated. Default 1024."""

    max_sequence_tokens: int | None = Field(default=None, ge=2)
    """The longest prompt and response together, in tokens: a response to a long prompt may be shorter than
    maxResponseTokens. Above data.maxPromptTokens. Unset: every response may have maxResponseTokens."""

    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature, above 0; log-probabilities are taken at the same temperature. VLLM samples from 0.01 to 2,
    Transformers from 0.000001 to 1000000; others are refused. Default 1.0."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Smallest set of tokens of this probability to sample from. Training needs 1.0, the default: the full
    distribution."""

    top_k: int = Field(default=0, ge=0)
    """Number of most likely tokens to sample from. Training needs 0, the default: all of them."""

    min_p: float = Field(default=0.0, ge=0, le=1)
    """Tokens less likely than this fraction of the most likely one are not sampled. Training needs 0.0, the default:
    all are."""

    stop: Items[StopText] = Field(default=(), max_length=16)
    """Texts that end a response, in training and in validation, wherever in it they come to stand; what made them
    stays in it. Default: none."""

    stop_token_ids: Items[TokenId] = Field(default=(), max_length=64)
    """Tokens that end a response like the model's own end tokens, in training and in validation. Default: none."""

    memory_fraction: float = Field(default=0.6, gt=0, le=0.95)
    """The part of the memory that is free when generation begins which keys and values of the rows that are decoded at
    once may take; other rows wait for their place. Of a CPU's memory every worker of a host has an equal share; on a
    device it is what VLLM's copy of the weights leaves, and what VLLM computes with is taken from it, too. Default
    0.6."""

    max_staleness: int = Field(default=0, ge=0, le=16)
    """How many steps the generating weights are behind those that a step begins to train, so that generation and
    training overlap: docs/asynchronous-training.md. Generation needs a worker group of its own. Default 0: every step
    is drawn with the newest weights."""

    weights: Literal["Fixed"] = "Fixed"
    """Which weights a step is drawn with: Fixed: those of maxStaleness + 1 steps before it, always, so that a run is a
    function of the job. Default Fixed."""

    lease_rows: int | None = Field(default=None, ge=1)
    """In a worker group that trains nothing, how many rows of a step a free rank takes at a time and generates by
    themselves, a lease: at most this number, rounded up to whole groups of algorithm.groupSize. A step is cut by it
    whatever the number of ranks is, so that any number of generating ranks gives the same run bit for bit; with fewer
    leases than ranks some have nothing to do. Small leases decode slower: fewer rows are decoded at once, and each
    lease ends with its own longest row. Not with `partial`. Unset: at least one lease for each rank, of at most about
    256 rows, and the last digits of log-probabilities depend on the number of ranks."""

    lease_seconds: int = Field(default=300, ge=1)
    """In an elastic worker group: how long a pod may take for a lease before it is named as late and the lease is also
    given to another. What is delivered first counts, and both are the same rows. Default 300."""

    generators_deadline_seconds: int = Field(default=1800, ge=1)
    """In an elastic worker group: how long training waits when no pod of it is left, before the attempt ends. Default
    1800."""

    partial: PartialRolloutSpec | None = None
    """Cut generation into rounds of so many tokens, and let a response that is not complete go on in later steps.
    Unset: a step ends with its longest response."""

    conversation: ConversationSpec | None = None
    """Play a conversation of several turns for each trajectory. Unset: a trajectory is one response to its prompt."""

    simulator: SimulatorSpec | None = None
    """Play an episode in a simulator for each trajectory, of which each decision of the policy is a row. Not with
    conversation. Unset: nothing is simulated."""

    max_mismatch: MaxMismatchSpec | None = None
    """End the job when training computes other log-probs than the rollout engine did. Not with maxStaleness above 0 or
    partial, where tokens are of older weights; in BFloat16 differences of 0.1 are normal. Unset: differences are
    reported only; but with data.imagesColumn, in Float32 and without either of the two, `{probsDiffMax: 0.05,
    steps: 2}`, because a policy that is trained without its pictures learns to guess."""

    parallelism: RolloutParallelism = RolloutParallelism()
    """How one copy of the generating model is spread over workers."""

    @property
    def played(self) -> ConversationSpec | SimulatorSpec | None:
        """What trajectories are played with; None where a trajectory is one response to its prompt."""
        return self.conversation or self.simulator
