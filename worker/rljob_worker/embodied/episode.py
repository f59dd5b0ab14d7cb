"""An episode: the policy sees, decides on some actions, and the simulator takes them, until the episode is over.

It is played as a conversation is, by the same loop and with the same journal. Each decision is a row. A step that is
repeated is played again from seeds and recorded decisions, and what the simulator then shows is compared with digests
that were recorded.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np

from rljob_api.catalogue.columns import FINISH_STEP, SUCCESS, SUCCESS_AT_END
from rljob_api.v1alpha1 import SimulatorSpec
from rljob_worker.conversations.policy import Policy
from rljob_worker.conversations.task import Task
from rljob_worker.conversations.world import World
from rljob_worker.embodied.observation import ActionPolicy, Actions, Observation
from rljob_worker.embodied.simulators.pool import SimulatorPool
from rljob_worker.embodied.simulators.session import SimulatorSession
from rljob_worker.embodied.simulators.settings import FIELD, ActionBounds, Frame, SimulatorFailed
from rljob_worker.embodied.video_encoders import VideoEncoder
from rljob_worker.embodied.video_frames import SHOWN_FRAMES, VideoFrames, evenly
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.vision.animations import animation_url

Make = Callable[[], Awaitable[Frame]]
"""Has the simulator do something."""
SHOWN_SPANS = 256
"""How many numbers a timeline has that a person is shown, at most."""


@dataclass(slots=True)
class EpisodeOutcome:
    """What an episode has come to so far."""

    num_steps: int = 0
    first_success: int | None = None
    """The step that succeeded first, from 1."""
    last_success: bool | None = None
    """What the last step said that said something."""
    num_clipped: int = 0
    """Numbers of actions that were out of bounds."""
    video: VideoFrames | None = None
    """PNG of the first camera, after the reset and after each step; None where nobody looks at it."""
    seconds: list[float] = field(default_factory=list)
    """How long the reset and each decision took in the simulator."""
    engine_seconds: list[float] = field(default_factory=list)
    """How long the engine took for each decision."""

    def add(self, frame: Frame) -> int | None:
        """Count the steps of a decision; which of them succeeded, from 1, if it is the first that did."""
        first = None
        for number, success in enumerate(frame.successes, 1):
            self.last_success = success if success is not None else self.last_success
            if success and self.first_success is None:
                self.first_success, first = self.num_steps + number, number
        self.num_steps += frame.num_steps
        return first

    def record(self, frame: Frame) -> None:
        """Keep what the first camera has shown, where somebody looks at it."""
        if self.video is not None:
            for picture in (*frame.earlier, frame.pictures[0]):
                self.video.add(picture)

    def timeline(self) -> list[float]:
        """Seconds of simulator and engine in turn, from the reset on; of a long episode its beginning."""
        pairs = zip_longest(self.seconds, self.engine_seconds)
        return [round(value, 4) for pair in pairs for value in pair if value is not None][:SHOWN_SPANS]


class Episodes:
    """Plays episodes of a job; `play` is its run function."""

    def __init__(
        self,
        pool: SimulatorPool,
        policy: ActionPolicy,
        simulator: SimulatorSpec,
        encoder: VideoEncoder | None = None,
    ) -> None:
        """encoder: of videos; None: of a job in which nobody compares them."""
        self._pool, self._policy, self._simulator, self._encoder = pool, policy, simulator, encoder
        self._started: ActionBounds | None = None

    async def start(self) -> None:
        """Start the simulators. Raises InvalidJob where none can be made, or the policy's actions are not theirs."""
        self._started = await self._pool.start()
        chunk, dimensions, words = self._simulator.action_chunk, len(self._bounds.low), self._policy.num_tokens
        if words != chunk * dimensions:
            raise InvalidJob(
                f"{FIELD}: a decision of the policy has {words} action tokens, and {chunk} actions (actionChunk) of "
                f"{dimensions} dimensions (of {self._simulator.run}) have {chunk * dimensions}; take a policy for this "
                "simulator, or write the actionChunk of the policy"
            )

    def close(self) -> None:
        """End the simulators and the encoder's thread."""
        self._pool.close()
        if self._encoder is not None:
            self._encoder.close()

    @property
    def _bounds(self) -> ActionBounds:
        """What actions the simulator takes."""
        assert self._started is not None, "the simulators were started"
        return self._started

    async def play(self, task: Task, policy: Policy, world: World) -> None:
        """Play one. Raises TrajectoryFailed for what goes wrong in the simulator, InvalidJob for what no episode can be
        played with."""
        session, outcome, failure = self._pool.session(), EpisodeOutcome(video=self._frames(world)), None
        try:
            await self._played(task, policy, world, session, outcome)
        except SimulatorFailed as error:
            failure = error
        finally:
            session.close()
        await self._show(task, world, outcome)
        if failure is not None:
            world.fail(f"simulator_{failure.cause}", str(failure))
        self._require_success_said(outcome)
        self._report(world, outcome)
        if self._encoder is not None and outcome.video is not None:
            world.embed(await self._encoder.embedding(outcome.video.pictures()))

    async def _played(
        self, task: Task, policy: Policy, world: World, session: SimulatorSession, outcome: EpisodeOutcome
    ) -> None:
        options = {name: task.columns[name] for name in self._simulator.columns if name in task.columns}

        async def began() -> Frame:
            return await session.reset(task.seed, options)

        frame = await self._timed(world, f"reset {task.seed} {options}", began, outcome)
        outcome.record(frame)
        while not frame.is_over and outcome.num_steps < self._simulator.max_steps:
            tokens = await self._decided(task, policy, frame, outcome)
            actions = self._actions(world, tokens, outcome)

            async def stepped(actions: Actions = actions) -> Frame:
                return await session.step(actions, records=outcome.video is not None)

            was_done = outcome.first_success is not None
            frame = await self._timed(world, f"step {digest_of_actions(actions)}", stepped, outcome)
            outcome.record(frame)
            first = outcome.add(frame)
            policy.acted_on(0 if was_done else (first or frame.num_steps) * actions.shape[1])
            self._reward(world, frame, first)
        if not frame.is_over and not outcome.last_success:
            world.cut_off()

    async def _decided(self, task: Task, policy: Policy, frame: Frame, outcome: EpisodeOutcome) -> np.ndarray:
        state = frame.state if self._simulator.has_state else None
        try:
            prompt = self._policy.prompt(Observation(frame.pictures, state, instruction_of(task)))
        except BadData as error:
            raise InvalidJob(f"{FIELD}: {error}") from error
        started = time.perf_counter()
        tokens = await policy.decide(prompt, frame.pictures, state, num_tokens=self._policy.num_tokens)
        outcome.engine_seconds.append(time.perf_counter() - started)
        return tokens

    def _actions(self, world: World, tokens: np.ndarray, outcome: EpisodeOutcome) -> Actions:
        """The actions of a decision that there is time for, within the simulator's bounds."""
        actions = np.asarray(self._policy.actions(tokens), np.float64)
        if not np.isfinite(actions).all():
            world.fail("action_not_finite", f"the policy's actions are {actions.tolist()}")
        bounded, was_outside = self._bounds.clipped(actions)
        if was_outside.any() and self._simulator.out_of_range == "Fail":
            at, dimension = (int(place[0]) for place in np.nonzero(was_outside))
            low, high = self._bounds.low[dimension], self._bounds.high[dimension]
            value = actions[at, dimension]
            message = f"dimension {dimension} of an action is {value:g}, out of the simulator's [{low:g}, {high:g}]"
            world.fail("action_out_of_range", f"{message}; {FIELD}.outOfRange: Clip moves it to the bound")
        outcome.num_clipped += int(was_outside.sum())
        return bounded[: self._simulator.max_steps - outcome.num_steps]

    async def _timed(self, world: World, what: str, make: Make, outcome: EpisodeOutcome) -> Frame:
        started = time.perf_counter()
        frame = await world.remade(what, make, lambda frame: frame.digest)
        outcome.seconds.append(time.perf_counter() - started)
        return frame

    def _frames(self, world: World) -> VideoFrames | None:
        """Room for the pictures that the encoder, or a person, will look at."""
        if not self._simulator.cameras or not (world.is_shown or self._encoder is not None):
            return None
        return VideoFrames(SHOWN_FRAMES if self._encoder is None else self._encoder.most_waiting)

    async def _show(self, task: Task, world: World, outcome: EpisodeOutcome) -> None:
        """For a person to look at: what was to be done, what came of it, a video, and where the time went."""
        if not world.is_shown or not outcome.seconds:
            return
        for name in self._simulator.columns:
            world.show(name, task.columns.get(name, ""))
        world.show("instruction", instruction_of(task))
        world.show("success", outcome.first_success is not None)
        world.show("steps", outcome.num_steps)
        world.show("timeline", outcome.timeline())
        if outcome.video is not None:
            pictures = outcome.video.pictures()
            looked_at = [pictures[at] for at in evenly(len(pictures), min(len(pictures), SHOWN_FRAMES))]
            world.show("video", await asyncio.to_thread(animation_url, looked_at))

    def _reward(self, world: World, frame: Frame, first: int | None) -> None:
        turn = world.turns - 1
        if self._simulator.reward == "Environment":
            world.reward(float(np.sum(frame.rewards)), turn=turn)
        elif first is not None:
            world.reward(1.0, turn=turn)

    def _report(self, world: World, outcome: EpisodeOutcome) -> None:
        world.mark(SUCCESS, int(outcome.first_success is not None))
        world.mark(SUCCESS_AT_END, int(bool(outcome.last_success)))
        world.mark(FINISH_STEP, outcome.first_success or outcome.num_steps)
        num_numbers = max(1, outcome.num_steps * len(self._bounds.low))
        world.metric("steps", outcome.num_steps)
        world.metric("actions_clipped_fraction", outcome.num_clipped / num_numbers)
        world.metric("seconds", sum(outcome.seconds))
        world.metric("engine_seconds", sum(outcome.engine_seconds))

    def _require_success_said(self, outcome: EpisodeOutcome) -> None:
        if outcome.last_success is None and outcome.num_steps:
            raise InvalidJob(
                f"{FIELD}.run: {self._simulator.run}: no step of an episode said whether it succeeded; return "
                '"success", true or false, in the info of each step'
            )


def instruction_of(task: Task) -> str:
    """What is to be done, in words: the text of the prompt."""
    texts = [message.get("content") for message in task.messages if message["role"] == "user"]
    return texts[-1] if texts and isinstance(texts[-1], str) else ""


def digest_of_actions(actions: Actions) -> str:
    """Names actions [steps, dimensions]."""
    return hashlib.blake2b(np.ascontiguousarray(actions).tobytes(), digest_size=8).hexdigest()
