"""What a job trains on: models, data sets, rewards."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rljob_api.vocabulary.model import ApiModel, Items
from rljob_api.vocabulary.network import NetworkEntry

NAME = r"^[a-z][a-z0-9_]{0,31}$"

Name = Annotated[str, Field(pattern=NAME, json_schema_extra={"maxLength": 32})]
"""The form of names of models, rewards and stages.  The length repeats the pattern for rules that look for a bound."""


class AdapterSpec(ApiModel):
    """LoRA: small matrices beside linear layers of a model. Only they are trained; the model stays as it is."""

    rank: int = Field(ge=1)
    """Rows of the smaller of the two matrices beside a layer."""

    alpha: float | None = Field(default=None, gt=0)
    """What the matrices give is multiplied by alpha / rank. Unset: twice the rank."""

    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Share of inputs that the adapter does not see. Default 0.0, and nothing else is built: with dropout the
    log-probabilities of an update would be those of another policy than the one that made the rows."""

    targets: Items[Annotated[str, Field(min_length=1)]] = Field(default=(), max_length=64)
    """Names of linear layers, such as `q_proj` or `self_attn.q_proj`, in every decoder layer. Empty: all there are."""


class VisionSpec(ApiModel):
    """The vision tower of a model, which turns pictures into what the decoder reads as tokens."""

    train: bool = False
    """Whether the tower is trained with the decoder. Default false: it stays as it is, and takes neither gradients nor
    an optimizer."""

    learning_rate: float | None = Field(default=None, gt=0, le=1)
    """Peak learning rate of the tower. It needs train. Unset: that of the model."""


class ModelSpec(ApiModel):
    """A named set of weights."""

    name: Name
    """The name that stages use. Those of the catalogue train and generate with `actor` unless told otherwise;
    `reference` and `critic` start as copies of the policy when they are not listed, in a job with one policy."""

    path: str = Field(min_length=1)
    """Where the weights are: a Hugging Face name, with `@revision` behind it for a branch, a tag or a commit, or a
    directory. A relative directory is looked up in the
    storage in a pod, beside the YAML file locally. Weights are read from safetensors files. A policy that nobody
    trains, such as the reference, may also be a run directory, whose newest checkpoint is taken, or a checkpoint in
    one; of several policies the one that has this model's name. `s3://bucket/model` is such a directory in a store:
    every rank reads its part of the weights from there."""

    initialise: Literal["Weights", "Random"] = "Weights"
    """`Random` reads nothing but the configuration at `path` and draws the weights from the job's seed, the same on any
    number of workers: a model that is trained from nothing. With `Weights` a tensor that no file has ends the job."""

    chat_template: dict[str, Any] = Field(default_factory=dict)
    """Arguments for the chat template of a policy, such as `{enable_thinking: false}`, or for that of a model of
    rewards; names that the template reads. Default: none."""

    adapter: AdapterSpec | None = None
    """Train a LoRA adapter in place of the model. Another model of the same path that nobody trains, such as the
    reference, then is this one with its adapter off, and needs no memory. A critic that is not listed has an adapter of
    its own as the policy's. Needs `pip install 'rljob[adapters]'`. Unset: all weights are trained."""

    vision: VisionSpec = VisionSpec()
    """Whether the vision tower of a model that sees is trained. Models without one have nothing to set here."""


class DatasetSpec(ApiModel):
    """One file, or several files in a folder or matched by a pattern, of prompts."""

    path: str = Field(min_length=1)
    """A parquet or JSON-lines file, a folder of them, a pattern such as `data/*.parquet`, or a URL of such in an
    object store: `s3://bucket/folder/*.jsonl`, `gs://…`, `az://account/container/…`, or one file at `https://…`; or a
    data set of the Hugging Face Hub, `hf://datasets/owner/name`, with `@revision` behind the name for a branch, a tag
    or a commit. Credentials of stores and HF_TOKEN come from the environment of the workers. Relative paths are looked
    up as for a model."""

    subset: str | None = Field(default=None, min_length=1, max_length=256)
    """Which part of a data set of the Hub, which its page calls subset. Unset: the only one, or the default one."""

    split: str | None = Field(default=None, min_length=1, max_length=256)
    """Which split of a data set of the Hub. Unset: `train`; data to validate on names it."""

    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")
    """What metrics call this data set and what the column `source` holds. Unset: the file name without its
    ending."""

    weight: float | None = Field(default=None, ge=0)
    """For training data: which share of the prompts is drawn from here, relative to the weights of the other data
    sets; 0 draws none. Every data set has a weight, or none has. Unset: all data sets are read as one long list, so
    that each has the share of its rows."""


Pixels = Annotated[int, Field(ge=1, le=2**28)]


class ImageSpec(ApiModel):
    """How large pictures are to the model. A picture outside these bounds is made larger or smaller, its sides in
    proportion, to multiples of what the model merges to a token."""

    min_pixels: Pixels = 1024
    """Fewest pixels of a picture. Default 1024, 32 x 32."""

    max_pixels: Pixels = 589824
    """Most pixels of a picture. Default 589824, 768 x 768: 784 tokens of a model that merges 28 x 28 pixels."""

    allow_http: bool = False
    """Whether pictures may be named by `http://` and `https://` URLs, which each worker that generates then fetches.
    Default false: rows with such a URL are an error."""


class VideoSpec(ApiModel):
    """How many frames of a video a model sees, and how large."""

    min_pixels: Pixels = 256
    """Fewest pixels of a frame. Default 256, 16 x 16."""

    max_pixels: Pixels = 65536
    """Most pixels of a frame. Default 65536, 256 x 256."""

    frames_per_second: float = Field(default=2.0, gt=0, le=1000)
    """Frames that are taken of a second, evenly over the video. Default 2."""

    max_frames: int = Field(default=128, ge=1, le=65536)
    """Most frames of a video; of a longer one fewer are taken of a second. Default 128."""


class DataSpec(ApiModel):
    """Prompts, and how many of them a step takes."""

    train: Items[DatasetSpec] = Field(default=(), max_length=64)
    """Data sets to train on, read as one long list, or mixed as their weights say. Only a job with rollout.simulator
    may do without: then the tasks are those that the simulator lists."""

    validation: Items[DatasetSpec] = Field(default=(), max_length=64)
    """Data sets to validate on. Empty: no validation."""

    prompt_column: str = Field(default="prompt", min_length=1)
    """The column that holds the prompt: a text, or a list of chat messages. Default `prompt`."""

    batch_size: int = Field(ge=1)
    """Prompts per step, over the whole job. A step makes batchSize x groupSize rows."""

    max_prompt_tokens: int = Field(default=1024, ge=1)
    """The longest prompt, in tokens. Longer prompts are left out, and counted. Default 1024."""

    shuffle: bool = True
    """Whether every pass over the data has its own order, a function of the seed and the number of the
    pass. Default true."""

    apply_chat_template: bool = False
    """Whether a text prompt is wrapped as one user message. Chat messages always go through the chat
    template. Default false."""

    system_prompt: str | None = Field(default=None, max_length=65536)
    """A system message put before every prompt. It needs chat messages or applyChatTemplate. Unset: none."""

    images_column: str | None = Field(default=None, min_length=1)
    """The column that holds the pictures of a prompt, one or a list of them: encoded bytes, a path beside the data, the
    URL of an object store, or a record of `bytes` and `path`, as the library `datasets` writes it. The prompt says
    `<image>` where a picture belongs, or has chat messages with parts of type `image`. Unset: prompts are text."""

    image: ImageSpec = ImageSpec()
    """How large pictures are to the model."""

    videos_column: str | None = Field(default=None, min_length=1)
    """The column that holds the videos of a prompt, one or a list of them, in the forms of imagesColumn: MP4, MOV, MKV
    and WEBM files, or animated GIF, PNG and WEBP. The prompt says `<video>` where a video belongs, or has chat messages
    with parts of type `video`. All but animations need `pip install 'rljob[video]'`. Unset: none."""

    video: VideoSpec = VideoSpec()
    """How many frames of a video a model sees, and how large."""


class RewardSpec(ApiModel):
    """One reward function; the reward of a row is the weighted sum over all of them."""

    name: Name
    """What metrics call it."""

    run: str = Field(min_length=1)
    """The function, as `module:function`; or `RewardModel`, a model of the job's own that `model` names."""

    model: Name | None = None
    """With run `RewardModel`: the model of `models` that says how good a row is, a sequence classifier with one output.
    A RewardModel stage computes it on the workers, spread over them as a reference is. `options`: `template`,
    `activation`, `maxTokens` and `tokenizer`, as the shipped service `reward_model` has them. Unset: none."""

    column: str | None = None
    """The data column handed to the function beside prompt and response, such as the right answer. Unset:
    none."""

    columns: list[str] = Field(default_factory=list, max_length=64)
    """Further columns of the data that go with rows, which the function gets by their names. Default: none."""

    weight: float = 1.0
    """Factor in the sum. Default 1.0."""

    spread: Literal["Row", "Steps"] = "Row"
    """Where in the response the reward is. `Row`: at its end. `Steps`: at the end of each step of the answer, as
    `step_rewards` of what the function returns say; the reward of the row is then their sum. For estimators that look
    at rewards of tokens. Default Row."""

    timeout_seconds: Annotated[float, Field(gt=0)] = 5.0
    """How long one call may take, in seconds. A call that takes longer gives reward 0, and is counted; with service or
    url it is what onError is about. Default 5."""

    on_error: Literal["Fail", "Zero", "Retry"] = "Fail"
    """What follows a call that raises, answers no number, ends its process, or finds no service. `Fail`: the job ends.
    `Zero`: the reward is 0, and the call is counted. `Retry`: the call is made again, `retries` times; the job ends
    when none succeeds. Default Fail."""

    retries: int = Field(default=5, ge=1, le=100)
    """With onError Retry: how often a call is made again. Default 5."""

    backoff_seconds: Annotated[float, Field(gt=0, le=3600)] = 1.0
    """With onError Retry: how long the first call that is made again waits, in seconds; each later one waits twice as
    long as the one before, and at most a minute or this, whichever is longer. Other rows do not wait. Default 1."""

    service: Name | None = None
    """The service of `services` that answers. The function is `async` and gets it as the keyword `service`;
    `rljob_worker.rewards:served` asks it for each row's reward. Unset: none."""

    url: str | None = Field(default=None, min_length=1)
    """As `service`, one that runs elsewhere and may answer several jobs: `https://models.example/judge`. Unset:
    none."""

    token_variable: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=253)
    """With url: the environment variable of the workers with the token that calls carry. On a cluster, an entry of
    `env` takes it from a Secret. Unset: tokenFile, or calls without a token."""

    token_file: str | None = Field(default=None, min_length=1)
    """With url: the file with the token, as an absolute path. Unset: tokenVariable, or calls without a token."""

    batch_rows: int = Field(default=16, ge=1, le=1024)
    """With service or url: rows of one call, at most. Default 16."""

    concurrency: int = Field(default=8, ge=1, le=256)
    """With service or url: calls under way at once, of each process that computes rewards. Default 8."""

    confinement: Literal["Required", "Preferred", "Off"] = "Off"
    """What the kernel holds the function to: its own temporary folder, what is installed, the folder of the job's
    modules, and no network. `Required`: the job is refused where a worker's kernel cannot. `Preferred`: what it can.
    Rewards share processes: all of a policy's are held to the strictest that one of them names. Default Off."""

    network: list[NetworkEntry] = Field(default_factory=list, max_length=64)
    """With confinement: servers that may be connected to by HTTP or HTTPS, as `host:port`; services that rewards ask
    need no entry. Rewards that share processes share this, too. Default: none."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the function."""

    @property
    def data_columns(self) -> tuple[str, ...]:
        """Columns of the data that the function is given: its `column` first, as `reference` too, then `columns`."""
        return (*(() if self.column is None else (self.column,)), *self.columns)

    @property
    def asks_service(self) -> bool:
        """Whether calls of a service are what it is made of."""
        return self.service is not None or self.url is not None
