"""How a job trains, moves weights, validates, keeps and stops."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rljob_api.vocabulary.model import ApiModel, Items, PartName

Precision = Literal["Float32", "BFloat16", "Float64"]
"""A number format, once it is settled."""


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
    plan` shows what it decides, and on a cluster the log of each worker. Default Auto."""

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
    split over keys. A job with an operation in its backward pass of which torch has no such kernel ends, naming it;
    elsewhere torch warns of such operations. CPUs do always. Default false."""

    memory: TrainingMemorySpec = TrainingMemorySpec()
    """What takes less memory and more time."""

    parallelism: TrainingParallelism = TrainingParallelism()
    """How one copy of the model is spread over workers."""

    profile: ProfileSpec = ProfileSpec()
    """Which steps are looked at closely."""


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

    staging: Literal["Auto", "Host", "Device"] = "Auto"
    """Where a version waits that comes ahead of its use, with rollout.maxStaleness. `Host`: in the data buffer of the
    host, as far as its slots have room; decoding stands still while workers load it. `Device`: each worker copies its
    slice into the memory of its device while the version before decodes, which takes as much again as its weights, and
    decoding stands still for a copy within the device. `Auto`: Device on accelerators where the plan finds room for it,
    else Host. Default Auto."""

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
