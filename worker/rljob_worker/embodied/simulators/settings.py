"""What simulators of a job are made with, what is known of them once one has started, and how a call of one fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rljob_worker.errors import InvalidJob

FIELD = "rollout.simulator"

FailureCause = Literal["raised", "timed_out", "died", "out_of_memory", "bad_observation", "bad_reward", "bad_success"]


@dataclass(frozen=True, slots=True)
class SimulatorSettings:
    """How a process makes and plays its environments; it crosses to the process as JSON."""

    run: str
    """`module:function` that makes an environment."""
    options: Mapping[str, Any]
    """Keyword arguments of the function."""
    settle_steps: int = 0
    """Steps of a still action after each reset, before the policy sees anything."""
    cameras: tuple[str, ...] = ()
    """Keys of an observation that are pictures, in the order of the policy's."""
    state: tuple[str, ...] | None = ()
    """Keys of an observation whose numbers are the state, in their order; empty: all that are not pictures; None: there
    is no state."""
    reward_bounds: tuple[float, float] | None = None
    """Rewards of a step outside of these are an error; None: every finite one is right."""
    stops_at_success: bool = True
    """Whether an episode ends with the step that succeeds."""

    def to_json(self) -> dict[str, Any]:
        """The first message to a process, or a part of it."""
        return {**asdict(self), "options": dict(self.options)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> SimulatorSettings:
        """What `to_json` gave."""
        bounds = values["reward_bounds"]
        lists = {name: None if values[name] is None else tuple(values[name]) for name in ("cameras", "state")}
        return SimulatorSettings(**{**values, **lists, "reward_bounds": None if bounds is None else tuple(bounds)})


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """How many simulators there are, and what they may take."""

    processes: int = 16
    environments: int = 1
    """How many each process has."""
    step_seconds: float = 30.0
    start_seconds: float = 300.0
    """For making an environment, and for a reset."""
    memory_bytes: int | None = None
    """What each process may use; None: any."""


@dataclass(frozen=True, slots=True, eq=False)
class ActionBounds:
    """The actions that an environment takes."""

    low: NDArray[np.float64]
    """[dimensions]; minus infinity where there is no bound."""
    high: NDArray[np.float64]
    """[dimensions]"""
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float32))
    """What actions are given as."""

    def clipped(self, actions: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The actions within the bounds, and which of them were not, both [actions, dimensions]. Raises InvalidJob
        for actions of another number of dimensions."""
        if actions.shape[1:] != self.low.shape:
            raise InvalidJob(
                f"{FIELD}: the policy's actions have {actions.shape[-1]} dimensions, and an action of the simulator "
                f"has {len(self.low)}; take a policy for this simulator, or one whose statistics are of it"
            )
        bounded = np.clip(actions, self.low, self.high)
        return bounded, np.abs(bounded - actions) > TOLERANCE * np.maximum(1.0, np.abs(bounded))


TOLERANCE = 1e-6
"""How far beyond a bound an action may be, relative to it, because of rounding."""


class SimulatorFailed(Exception):
    """A call of a simulator that costs its episode."""

    def __init__(self, cause: FailureCause, message: str) -> None:
        super().__init__(message)
        self.cause: FailureCause = cause


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """What a simulator came to by a reset, or by the actions of a decision."""

    pictures: tuple[bytes, ...]
    """PNG, one of each camera, after the last step."""
    state: NDArray[np.float32] | None
    """[numbers]"""
    rewards: tuple[float, ...]
    """What each step that was taken was rewarded with."""
    successes: tuple[bool | None, ...]
    """What each step said of success; None where it said nothing."""
    is_over: bool
    """Whether the environment ended the episode, or succeeded where that ends it."""
    digest: str
    """Names all of this but the video: equal only for equal frames."""
    earlier: tuple[bytes, ...] = ()
    """PNG of the first camera after each step but the last, where videos are recorded."""

    @property
    def num_steps(self) -> int:
        """Steps that were taken; 0 of a reset."""
        return len(self.rewards)
