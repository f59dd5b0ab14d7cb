"""How a job trains, generates, validates, keeps and stops."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.v1alpha1.conversation import ConversationSpec
from rljob_api.v1alpha1.simulator import SimulatorSpec
from rljob_api.vocabulary.model import ApiModel, Items, PartName

Precision = Literal["Float32", "BFloat16", "Float64"]
"""A number format, once it is settled."""

StopText = Annotated[str, Field(min_length=1, max_length=256)]
ServerURL = Annotated[str, Field(max_length=512, pattern=r"^https?://[^\s/?#@]+(/[^\s?#@]*)?$")]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class TrainingParallelism(ApiModel):
    """How one copy of the model is spread over workers; what is left of the group is data parallelism."""

    tensor: int = Field(default=1, ge=1)
    """Workers that share every layer: each has a part of its matrices, and outside of them of the tokens. It divides
    the model's attention heads, its key heads and the width of its MLP. They talk in every layer, so that they belong
    into one pod. Default 1."""

    context: int = Field(default=1, ge=1)
    """Workers that share every sequence: each computes a part of its tokens. In attention each computes a part of the
    heads where this divides the model's key heads (those that `tensor` leaves a worker); else keys and values go round
    the workers in a ring. Default 1."""

    pipeline: int = Field(default=1, ge=1)
    """Workers, or sets of those that share layers, that have layers one after another: micro-batches go through them in
    turn, so that there should be several times as many. At most the model's layers; with engine Megatron. They talk
    once per micro-batch, and may lie in different pods. Default 1."""

    expert: int = Field(default=1, ge=1)
    """Workers that share the experts of every layer, of a model that has some: tokens travel to the experts that they
    chose. Neighbours among all workers of the group that have the same layers, whatever else they share. It divides
    the experts of a layer and these workers: of the group, of a replica, of a pipeline stage. Default 1."""

    replicate: int = Field(default=1, ge=1)
    """Replicas of weights, gradients and optimizer in a group, each shared out to a run of neighbours: with as many as
    pods, or a divisor of that, weights are gathered within a pod, and only the gradients of an optimizer step go from
    pod to pod, once. Workers have so many times more of them in memory. It divides the copies of the model in the
    group. Default 1: all share out one."""


class ProfileSpec(ApiModel):
    """Which steps are looked at closely."""

    steps: Items[Annotated[int, Field(ge=1)]] = Field(default=(), max_length=16)
    """Steps, none after stop.steps, of which some workers leave a trace of torch and, on devices, a snapshot of memory,
    and the lead a timeline of workers, in the run's folder: docs/watching-a-run.md. They are slower than others.
    Default: none."""

    ranks: Items[Annotated[int, Field(ge=0)]] = Field(default=(0,), min_length=1, max_length=64)
    """Numbers, within its group, of the workers of every group that leave traces and snapshots. The timeline has these
    and at most 64 workers of a group besides. Default [0]."""

    stages: Items[Annotated[str, Field(min_length=1)]] = Field(default=(), max_length=32)
    """Names of stages; each has a trace and a snapshot of its own, and the rest of the step has none. Empty: the whole
    step has one."""


class OffloadSpec(ApiModel):
    """What waits in the memory of the host until an accelerator needs it. On CPUs it changes nothing."""

    optimizer: bool = False
    """Whether the optimizer's states wait there: each optimizer step brings them to the accelerator and back, a part
    at a time. Default false."""

    parameters: bool = False
    """Whether weights, gradients and the optimizer wait there, of every model that is trained or scored: each pass
    brings the weights, a few layers at a time, and optimizer steps are made by the host. Default false."""


Checkpointing = Literal["None", "Full", "Auto"]


class TrainingMemorySpec(ApiModel):
    """What takes less memory and more time. None of it changes what is learned."""

    activation_checkpointing: Checkpointing = "Auto"
    """Whether activations are computed again in the backward pass, in place of being kept. `Auto`: where a worker would
    not fit otherwise, by the plan's own estimate, and where its accelerator or its model is of unknown size; `rljob
    plan` shows what it decides. Default Auto."""

    offload: OffloadSpec = OffloadSpec()
    """What waits in the memory of the host until an accelerator needs it."""


class OptimizerSpec(ApiModel):
    """Who makes optimizer steps, and what is kept of every weight between them."""

    name: PartName = "AdamW"
    """AdamW, or an optimizer that an installed package brings: docs/extending.md. Default AdamW."""

    states: Literal["Float32", "BFloat16", "Int8"] = "Float32"
    """Number format of what is kept: of the two running means of AdamW 8, 4 or 2 bytes of a weight. Fewer bits change
    what is learned a little; steps are computed in Float32 always. Float32 is Float64 where training.precision is.
    `BFloat16` wants betas of at most 0.996: slower means stand still in so few digits. Default Float32."""


class TrainingSpec(ApiModel):
    """Optimizer steps."""

    engine: Literal["FSDP", "Megatron"] = "FSDP"
    """The library whose decoder layers are trained: FSDP has those of transformers, for every family. Megatron has
    those of Megatron-core, for Llama, Qwen2, Qwen3 and Qwen3-MoE, and has to be installed: `pip install
    'rljob[megatron]'`. What is learned is the same. Default FSDP."""

    mini_batch_rows: int | None = Field(default=None, ge=1)
    """Rows per optimizer step, over the whole job: a multiple of groupSize that divides batchSize x
    groupSize. Unset: the whole batch."""

    tokens_per_micro_batch: int = Field(default=16384, ge=1)
    """Most prompt and response tokens of one forward pass on one worker; workers that share sequences
    (parallelism.context) have as many together. A prompt that rows of a group share counts once where they are
    computed together. A longer row goes alone. It changes speed and memory, never results. Default 16384."""

    patches_per_micro_batch: int | None = Field(default=None, ge=1)
    """Most patches of pictures of one forward pass on one worker, for models that see. A picture that rows of a group
    share counts once where they are computed together; a row with more goes alone. It changes speed and memory, never
    results. Unset: as many as its tokens allow."""

    learning_rate: float = Field(default=1.0e-6, gt=0)
    """Peak learning rate. Default 1.0e-6."""

    schedule: Literal["Constant", "Linear", "Cosine"] = "Constant"
    """How the learning rate goes from its peak to 0, which it is after scheduleSteps. Constant: it stays. Default
    Constant."""

    schedule_steps: int | None = Field(default=None, ge=1)
    """Steps after which a rate that falls is 0, at least stop.steps. Unset: stop.steps, which then stays as it is in a
    cluster."""

    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps over which the learning rate rises from 0 to its peak. Default 0."""

    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay. Default 0.0."""

    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients with a larger norm are scaled down to it. Default 1.0."""

    router_aux_loss_coefficient: float | None = Field(default=None, ge=0)
    """For models with experts: the weight in the loss of what an uneven load of the experts costs, over all response
    tokens of an optimizer step. 0: nothing; above 0, a step of several micro-batches computes one more forward pass of
    each. Unset: as the model's config.json has it, router_aux_loss_coef where output_router_logits is true, else 0."""

    router_replay: Literal["None", "Rollout"] = "None"
    """Whose choice of experts the policy is trained with, of models with experts: None: its own, each time anew.
    Rollout: those that computed a token when it was generated, weighed by the router as it is now (R3,
    https://arxiv.org/abs/2510.11370), so that rounding cannot send a token elsewhere in training. With rollout.engine
    Transformers. Default None."""

    max_skipped_steps: int = Field(default=5, ge=1)
    """Optimizer steps of one model in a row whose gradients are not finite numbers, and which are skipped for it,
    after which the job ends as failed. Default 5."""

    betas: Items[float] = Field(default=(0.9, 0.999), min_length=2, max_length=2)
    """The two decay rates of AdamW, or of another optimizer that has some. Default [0.9, 0.999]."""

    optimizer: OptimizerSpec = OptimizerSpec()
    """Who makes optimizer steps, and what is kept of every weight between them."""

    precision: Literal["Auto", "Float32", "BFloat16", "Float64"] = "Auto"
    """Number format of the forward and backward pass; weights in training are kept in at least Float32. Auto, the
    default: Float32 where a worker group with a model computes on CPUs, of which many have no instructions for
    BFloat16; elsewhere BFloat16."""

    compile: bool | None = None
    """Whether decoder layers of models that are trained or scored are compiled by torch.compile: faster steps on
    accelerators, after minutes at the first one of every attempt that finds no cache. Last digits change. Needs a C++
    compiler where workers run; not for models with experts. Unset: true on CUDA with FSDP
    where both hold, else false."""

    deterministic: bool = False
    """Whether accelerators use only kernels that add in the same order every time, so that the same job gives the same
    numbers there as well: backward passes of attention and embeddings are slower and take more memory, rows are not
    split over keys. CPUs do always. Default false."""

    memory: TrainingMemorySpec = TrainingMemorySpec()
    """What takes less memory and more time."""

    parallelism: TrainingParallelism = TrainingParallelism()
    """How one copy of the model is spread over workers."""

    profile: ProfileSpec = ProfileSpec()
    """Which steps are looked at closely."""


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
    tokens. CPUs do anyway. Unset: false with VLLM; true with Transformers, whose graphs nobody has run on a device
    yet."""

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
    device VLLM's copy of the weights is taken from it, too. Default 0.6."""

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


WeightTransportChoice = Literal["Auto", "InProcess", "DataBuffer", "Collective"]


class WeightDeltaSpec(ApiModel):
    """Only what changed of new weights is sent: places and values, which are the same bits as the whole. Each source
    keeps its share in host memory, and each worker that generates a copy of the model."""

    full_every: int = Field(default=32, ge=2)
    """Everything is sent at each start and then every this many versions. Default 32."""


class WeightSyncSpec(ApiModel):
    """How new weights get from training to generation after a step."""

    transport: WeightTransportChoice = "Auto"
    """`InProcess`: from engine to engine, where the same workers train and generate. `DataBuffer`: through shared
    memory of the hosts and Arrow Flight, from many workers. `Collective`: broadcasts on a process group across worker
    groups, of NCCL between accelerators. `Auto`: InProcess where that can be, else DataBuffer. Default Auto."""

    delta: WeightDeltaSpec | None = None
    """Send only what changed. Not with InProcess. Unset: every version is sent whole."""


class ValidationSpec(ApiModel):
    """How and when the policy is measured on the validation data."""

    every_steps: int = Field(default=0, ge=0)
    """Steps between two validations. Default 0: only before the first step and after the last."""

    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature: 0, or as for rollout.temperature. Default 0.0: the most likely token."""

    top_p: float = Field(default=1.0, gt=0, le=1)
    """Smallest set of tokens of this probability to sample from. Default 1.0: all tokens."""

    top_k: int = Field(default=0, ge=0)
    """Number of most likely tokens to sample from. Default 0: all tokens."""

    min_p: float = Field(default=0.0, ge=0, le=1)
    """Tokens less likely than this fraction of the most likely one are not sampled. Default 0.0: all are."""

    max_rows: int | None = Field(default=None, ge=1)
    """Most prompts of each data set that are used, from its start. Unset: all."""

    samples_per_prompt: int = Field(default=1, ge=1, le=1024)
    """Responses to each prompt. Above 1 the temperature must be above 0, and metrics say for k = 1, 2, 4, … and for
    this number how often one of k responses is right, `validation/pass@k`, and how often the answer that most of k
    agree on is, `validation/maj@k`. The answer is what the first reward returns as `answer`, or else the whole
    response. Default 1."""


class CheckpointSpec(ApiModel):
    """When training state is written, what is kept, and where training starts."""

    every_steps: int = Field(default=0, ge=0)
    """Steps between two checkpoints; the last step always has one. Default 0: only the last step."""

    keep_last: int = Field(default=2, ge=1)
    """How many of the newest checkpoints are kept. Default 2."""

    keep_best: int = Field(default=0, ge=0)
    """How many of the best checkpoints, by validation reward, are kept besides. Default 0."""

    resume: Literal["Auto", "Never"] = "Auto"
    """`Auto` goes on from the newest checkpoint of this run, `Never` refuses a run directory that has one.
    Default Auto."""

    versions: Literal["Keep", "Redraw"] = "Keep"
    """With rollout.maxStaleness, what becomes of steps that are generated and not trained on when a job goes on from a
    checkpoint. Keep: the checkpoint has the weights that they are drawn with, and they are drawn again as they were.
    Redraw: it has not, and they are drawn with its own weights, so that the run is not that of a job which was not
    interrupted. Default Keep."""

    init_from: str | None = None
    """A checkpoint of another run whose weights this one starts from, in a directory or in a store, such as
    `s3://bucket/runs/NAME`; steps count from 1. Only models in training get them: a reference stays at its own path.
    Unset: start from the models' paths."""


class StopSpec(ApiModel):
    """When the job is done: whichever comes first."""

    steps: int = Field(default=500, ge=1)
    """Number of steps. Default 500."""

    reward_above: float | None = None
    """Stop after a validation whose mean reward is above this; without validation data, after a step whose
    mean reward is. Unset: never."""

    active_seconds: float | None = Field(default=None, gt=0)
    """Stop after this many seconds of running, over all attempts. Unset: never."""
