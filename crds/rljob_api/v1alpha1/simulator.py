"""How a job's episodes are played: which simulator, how many of it, and what bounds an episode."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from rljob_api.vocabulary.model import ApiModel, Items
from rljob_api.vocabulary.quantity import QUANTITY

Key = Annotated[str, Field(min_length=1, max_length=253)]


class RewardBoundsSpec(ApiModel):
    """Between what a simulator's rewards are."""

    low: float
    """The least reward of a step."""

    high: float
    """The largest reward of a step."""


class EvaluationSpec(ApiModel):
    """Which episodes validation plays, in the place of data.validation."""

    tasks: Items[Key] = Field(default=(), max_length=4096)
    """Names of tasks that the simulator lists. Empty: all of them."""

    trials: int = Field(default=10, ge=1, le=10000)
    """Episodes of each task, each with a seed of its own. Default 10."""


class EpisodeVideoSpec(ApiModel):
    """How the video of an episode becomes the numbers by which SRPO compares it with others."""

    run: str | None = Field(default=None, min_length=1)
    """The function, as `module:function`: it gets frames, uint8 [frames, height, width, 3], and returns a list of
    numbers, or None where there is no embedding. One of this, `path` and `service`."""

    path: str | None = Field(default=None, min_length=1)
    """A V-JEPA 2 model: a directory or a name on a hub. The embedding is the mean of what its encoder says of all
    patches. Each generating worker holds all of it in the memory of its host, and computes it on CPUs. One of this,
    `run` and `service`."""

    service: str | None = Field(default=None, min_length=1)
    """The name of a service beside the job that encodes videos, such as one that runs
    `rljob_worker.services:video_encoder`: V-JEPA 2 on accelerators of its own, which all workers ask. One of this,
    `run` and `path`."""

    frames: int = Field(default=64, ge=1, le=4096)
    """Frames of a video, evenly spaced over the steps of the episode; of a shorter one some are taken several times.
    Default 64."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function."""


class SimulatorSpec(ApiModel):
    """Each trajectory is an episode in a simulator: the policy sees pictures and state, and decides on actions."""

    run: str = Field(min_length=1)
    """The function that makes an environment of gymnasium's API, as `module:function`."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function."""

    processes: int = Field(default=16, ge=1, le=1024)
    """Processes of each copy of the generating model in which environments run. Default 16."""

    environments_per_process: int = Field(default=1, ge=1, le=1024)
    """Environments of a process; while one is stepped the others of its process wait. processes x
    environmentsPerProcess episodes are played at once. Default 1."""

    max_steps: int = Field(default=512, ge=1, le=1_000_000)
    """Steps of an episode, at most; after that it is over. Default 512."""

    settle_steps: int = Field(default=10, ge=0, le=10_000)
    """Steps after each reset before the policy sees anything, in which objects come to rest. They are not of maxSteps.
    Default 10."""

    action_chunk: int = Field(default=8, ge=1, le=1024)
    """Actions of a decision: steps that are taken before the policy sees again. Default 8."""

    step_seconds: float = Field(default=30.0, gt=0, le=86400)
    """How long a step may take, in seconds; a process that is late is killed and replaced, and its episode fails.
    Default 30."""

    start_seconds: float = Field(default=300.0, gt=0, le=86400)
    """How long making an environment may take, or a reset, in seconds. Default 300."""

    memory: str | None = Field(default=None, pattern=QUANTITY)
    """Memory of a process and all that it starts; one with more is killed, and its episode fails. Unset: no limit."""

    cameras: Items[Key] = Field(default=(), max_length=16)
    """Keys of observations that are pictures, uint8 [height, width, 3], in the order in which the policy sees them.
    Empty: it sees none."""

    state: Items[Key] = Field(default=(), max_length=64)
    """Keys of observations whose numbers are the state, in this order. Empty: with cameras there is no state, without
    it is all numbers of an observation."""

    columns: Items[Key] = Field(default=("task",), max_length=64)
    """Columns of the data that a reset gets as `options`, as text, such as task and initial_state. Default: task, after
    which metrics are named."""

    statistics: str | None = Field(default=None, min_length=1)
    """The data set by whose statistics the actions of a policy are un-normalised. Unset: the only one that the model
    has statistics of."""

    reward: Literal["Success", "Environment"] = "Success"
    """What the episode's environment reward is. `Success`: 1 where it succeeded at any step, else 0. `Environment`: the
    sum of the simulator's rewards, each at the decision that earned it. Default Success."""

    reward_bounds: RewardBoundsSpec | None = None
    """An episode with a reward of a step outside of these fails. Unset: any finite reward is right."""

    after_success: Literal["Stop", "Continue"] = "Stop"
    """`Stop`: an episode is over with the step that succeeds. `Continue`: it goes on to its end, which says whether
    success lasts; what the policy does then is in no loss. Default Stop."""

    out_of_range: Literal["Clip", "Fail"] = "Clip"
    """What an action outside of the simulator's bounds is: moved to the bound and counted, or a failure of its episode.
    Default Clip."""

    rendering: Literal["Off", "EGL"] = "Off"
    """`EGL`: pictures are drawn without a display, on the accelerator of the worker where it has one (MUJOCO_GL and
    MUJOCO_EGL_DEVICE_ID are set). `Off`: nothing is set. Default Off."""

    max_failed: float = Field(default=0.1, ge=0, le=1)
    """Which part of a step's episodes may fail. Failed ones are in no loss, no baseline and no mean; with more of them
    the job ends. Default 0.1."""

    video: EpisodeVideoSpec | None = None
    """The encoder of videos, for algorithm.progress. A frame is what the first of `cameras` sees after a step. Unset:
    episodes have no videos."""

    evaluation: EvaluationSpec | None = None
    """The episodes of validation, of tasks that the simulator lists. Unset: those of data.validation."""

    @property
    def has_state(self) -> bool:
        """Whether the policy reads a state."""
        return bool(self.state) or not self.cameras

    @property
    def num_decisions(self) -> int:
        """Decisions of an episode, at most."""
        return -(-self.max_steps // self.action_chunk)

    @property
    def num_environments(self) -> int:
        """Episodes that each copy of the generating model plays at once."""
        return self.processes * self.environments_per_process
