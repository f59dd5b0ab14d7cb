"""What conversations cost besides decoding and the time that tools take.

    python benchmarks/conversations.py [speed | turns | memory | environments | steps]

Event loop, policy, renderer and sandbox are those of a job, and as in a worker the garbage collector does not look at
what was imported. The engine is a stand-in whose decode step takes as long as `--step-seconds` says, for any number of
rows; a token of each.

speed         64 and 1,024 conversations of four turns with tools of 0.2 s: tokens per second over those of a simulation
              of the same lengths and waits, in which nothing else takes time
turns         CPU of the process for a turn, around turns 8 and 64 of conversations that the chat template of the tiny
              model renders; the engine answers at once
memory        private memory of a conversation that waits for a tool, less its tokens
environments  1,024 environments in 8 processes: five calls each, all at once
steps         decode steps from a tool's answer until its conversation decodes again, in an engine of rljob with a tiny
              model, beside a row of more than 32,768 tokens

Exits with 1 where a figure misses its limit, and names it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import heapq
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from figures import Figure, exit_code
from private_memory import private_bytes
from transformers import Qwen3Config

from rljob_worker.batch import Column, Indices
from rljob_worker.conversations.messages import Message
from rljob_worker.conversations.playing.loop import Conversations
from rljob_worker.conversations.playing.plays import Play
from rljob_worker.conversations.policy import Bounds, Policy
from rljob_worker.conversations.rendering.chat_renderer import ChatRenderer
from rljob_worker.conversations.task import Task
from rljob_worker.conversations.world import SharedWorld, World
from rljob_worker.engines.models import random_policy
from rljob_worker.engines.rollout.requests import EndedRequests, Ending, Load, PartialResponses, Requests, Sampling
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.sandbox.calls.calls import Calls
from rljob_worker.sandbox.targets import Answer, CallLimits, Target
from rljob_worker.stages.stage import Alone
from rljob_worker.tiny.conversations import calculator
from rljob_worker.tiny.tokenizer import train_tokenizer

TURNS, TOOL_SECONDS = 4, 0.2
MEAN_TOKENS = 32
LONG_ROW = 32_768
END = 2
"""Id of the tiny tokenizer's `<|end|>`."""

Lengths = Callable[[int, int], int]
"""Tokens of a turn, by row and turn."""


class TimedEngine:
    """A RolloutEngine whose steps take time and nothing else. Counts steps."""

    def __init__(self, lengths: Lengths, step_seconds: float) -> None:
        self.version, self.num_steps = 0, 0
        self.first_step: dict[tuple[int, int], int] = {}
        """By row and turn, the step in which its first token was decoded."""
        self._lengths, self._seconds = lengths, step_seconds
        self._left: dict[int, list[int]] = {}
        """By row: turn, tokens left, tokens in all."""
        self._woken = threading.Event()

    def submit(self, requests: Requests) -> None:
        for row, turn, most in zip(
            requests.row_ids.tolist(), requests.turns.tolist(), requests.max_tokens.tolist(), strict=True
        ):
            length = min(most, self._lengths(row, turn))
            self._left[row] = [turn, length, length]

    def advance(self, most_steps: int | None = None) -> EndedRequests:
        ended: list[tuple[int, int, int]] = []
        last = None if most_steps is None else self.num_steps + most_steps
        while self._left and not ended and not self._woken.is_set() and self.num_steps != last:
            begun = time.perf_counter()
            self.num_steps += 1
            for row, state in list(self._left.items()):
                if state[1] == state[2]:
                    self.first_step[row, state[0]] = self.num_steps
                state[1] -= 1
                if not state[1]:
                    ended.append((row, state[0], state[2]))
                    del self._left[row]
            time.sleep(max(0.0, self._seconds - (time.perf_counter() - begun)))
        self._woken.clear()
        return self._table(ended)

    def _table(self, ended: Sequence[tuple[int, int, int]]) -> EndedRequests:
        lengths = np.array([length for _, _, length in ended], np.int64)
        tokens = np.full(int(lengths.sum()), 20, np.int64)
        tokens[np.cumsum(lengths) - 1] = END
        return EndedRequests(
            np.array([row for row, _, _ in ended], np.int64),
            np.array([turn for _, turn, _ in ended], np.int64),
            Column.from_lengths(tokens, lengths),
            Column.from_lengths(np.full(len(tokens), -1.0, np.float32), lengths),
            Column.from_lengths(np.zeros_like(tokens), lengths),
            np.full(len(ended), Ending.END_TOKEN, np.int8),
        )

    def peek(self, row_ids: Indices) -> PartialResponses:
        lengths = np.array([self._left[row][2] - self._left[row][1] for row in row_ids.tolist()], np.int64)
        tokens = Column.from_lengths(np.full(int(lengths.sum()), 20, np.int64), lengths)
        log_probs = Column.from_lengths(np.full(len(tokens.values), -1.0, np.float32), lengths)
        return PartialResponses(tokens, log_probs, Column.from_lengths(np.zeros_like(tokens.values), lengths))

    def wake(self) -> None:
        self._woken.set()

    def abort(self, row_ids: Indices) -> EndedRequests:
        for row in row_ids.tolist():
            self._left.pop(row, None)
        return self._table([])

    def hold(self, row_ids: Indices) -> None:
        """Nothing is cached."""

    def release(self, row_ids: Indices) -> None:
        """Nothing is cached."""

    @property
    def load(self) -> Load:
        return Load(len(self._left), 0, 0, 0)


class WaitingWorld:
    """A caller whose answers take time, and nothing else."""

    def __init__(self, seconds: float, engine: TimedEngine | CountedEngine | None = None) -> None:
        self._seconds, self._engine = seconds, engine
        self.answered_at: dict[str, int] = {}
        """By key, steps of the engine when the answer came."""
        self.gate: asyncio.Event | None = None
        self.num_waiting = 0

    async def call(
        self, session: str, target: str, method: str | None, arguments: Mapping[str, Any], key: str = ""
    ) -> Answer:
        self.num_waiting += 1
        if self.gate is not None:
            await self.gate.wait()
        else:
            await asyncio.sleep(self._seconds)
        if self._engine is not None:
            self.answered_at[key] = self._engine.num_steps
        return Answer("1331", None, self._seconds)

    async def end(self, session: str) -> None:
        """Nothing was started."""

    async def close(self) -> None:
        """Nothing was started."""


def tasks(number: int) -> list[Task]:
    """Tasks of groups of 8 trajectories, the last possibly of fewer."""
    prompt = np.arange(20, 44)
    return [
        task
        for group in range(-(-number // 8))
        for task in Task.of_group(question(group), prompt, {}, job_seed=0, group=group, group_size=8)
    ][:number]


def question(group: int) -> list[Message]:
    """Another one for each group."""
    text = f"Ada buys 27 boxes of 48 cards and finds {group} more. How many cards in all?"
    return [{"role": "user", "content": text}]


@cache
def tokenizer() -> Any:
    """That of the tiny model that has a tool."""
    problems = calculator.products(0, 64, 2).train
    return train_tokenizer(calculator.spelling(problems, 0), has_tools=True)


@contextmanager
def playing(
    engine: TimedEngine | CountedEngine,
    run: Callable[[Task, Policy, World], Awaitable[None]],
    caller: Any,
    *,
    turns: int,
    number: int,
) -> Iterator[Callable[[list[Task]], float]]:
    """Plays tasks and says how many seconds it took."""
    bounds = Bounds(turns=turns, rows=1, response_tokens=2 * LONG_ROW - 64, row_tokens=2 * LONG_ROW)
    conversations = Conversations(
        engine, run, ChatRenderer(tokenizer()), bounds, concurrency=number, shared=SharedWorld(), caller=caller
    )

    def play(played: list[Task]) -> float:
        begun = time.perf_counter()
        trajectories = conversations.play(Play(played, Sampling(), "step-1"), Alone())
        seconds = time.perf_counter() - begun
        failed = [item.message for item in trajectories if item.failed]
        assert not failed, failed[0]
        return seconds

    try:
        yield play
    finally:
        conversations.close()


async def with_tools(task: Task, policy: Policy, world: World) -> None:
    """A tool after every turn but the last."""
    await policy.chat(None, tools=[calculator.SCHEMA])
    while not policy.is_over:
        answer = await world.call("calculator", {"expression": "27*48+35"})
        await policy.chat([{"role": "tool", "content": str(answer.value)}])


def drawn_lengths(number: int, turns: int) -> np.ndarray:
    """int64 [rows, turns]: log-normal, at least 1."""
    draws = np.random.default_rng(0).lognormal(np.log(MEAN_TOKENS) - 0.125, 0.5, (number, turns))
    return np.maximum(1, draws.astype(np.int64))


def simulated_seconds(lengths: np.ndarray, step_seconds: float, wait: float) -> float:
    """When the last conversation ends where steps and waits alone take time. A turn that is asked for during a step
    begins with the next one."""
    ready = [(0.0, row, 0) for row in range(len(lengths))]
    running: dict[int, list[int]] = {}
    now = 0.0
    while ready or running:
        if not running:
            now = max(now, ready[0][0])
        while ready and ready[0][0] <= now:
            _, row, turn = heapq.heappop(ready)
            running[row] = [turn, int(lengths[row, turn])]
        now += step_seconds
        for row, state in list(running.items()):
            state[1] -= 1
            if state[1] == 0:
                del running[row]
                if state[0] + 1 < lengths.shape[1]:
                    heapq.heappush(ready, (now + wait, row, state[0] + 1))
    return now


def speed(options: argparse.Namespace) -> list[Figure]:
    figures = []
    for number in (64, 1024):
        lengths = drawn_lengths(number, TURNS)
        expected = simulated_seconds(lengths, options.step_seconds, TOOL_SECONDS)
        ratios, cpu = [], []
        for _ in range(options.rounds):
            engine = TimedEngine(lambda row, turn, of=lengths: int(of[row, turn]), options.step_seconds)
            with playing(engine, with_tools, WaitingWorld(TOOL_SECONDS), turns=TURNS, number=number) as play:
                before = time.process_time()
                ratios.append(expected / play(tasks(number)))
                cpu.append(time.process_time() - before)
        print(
            f"{number} conversations, steps of {options.step_seconds * 1000:g} ms: simulated {expected:.2f} s, "
            f"{int(lengths.sum()) / expected:.0f} tokens/s; of it {statistics.median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}); "
            f"{statistics.median(cpu) / lengths.size * 1000:.2f} ms of CPU a turn",
            flush=True,
        )
        figures.append(Figure(f"{number} conversations, of simulated speed", statistics.median(ratios), least=0.9))
    return figures


def turns(options: argparse.Namespace) -> list[Figure]:
    number, last = 32, 64
    seconds: list[list[float]] = []
    for _ in range(options.rounds):
        begun: dict[int, float] = {}

        async def noted(task: Task, policy: Policy, world: World, at: dict[int, float] = begun) -> None:
            await policy.chat(None, tools=[calculator.SCHEMA])
            while not policy.is_over:
                at.setdefault(world.turns, time.process_time())
                answer = await world.call("calculator", {"expression": "27*48+35"})
                await policy.chat([{"role": "tool", "content": str(answer.value)}])

        engine = TimedEngine(lambda row, turn: MEAN_TOKENS, 0.0)
        engine._lengths = lambda row, turn: 1  # a step a turn: all conversations take it together
        with playing(engine, noted, WaitingWorld(0.0), turns=last + 2, number=number) as play:
            play(tasks(number))
        seconds.append([(begun[turn + 1] - begun[turn]) / number for turn in range(1, last + 1)])
    of_turn = np.median(np.array(seconds), axis=0) * 1000
    early, late = float(of_turn[4:12].mean()), float(of_turn[-8:].mean())
    print(
        f"CPU of a turn: turns 5 to 12 {early:.2f} ms, turns 57 to 64 {late:.2f} ms, {late / early:.2f} times",
        flush=True,
    )
    return [Figure("ms of CPU of turn 8", early, most=2.0), Figure("turn 64 over turn 8", late / early, most=1.5)]


def memory(options: argparse.Namespace) -> list[Figure]:
    number = 2048
    engine = TimedEngine(lambda row, turn: MEAN_TOKENS, 0.0)
    world = WaitingWorld(0.0)
    with playing(engine, with_tools, world, turns=2, number=number) as play:
        play(tasks(64))  # what all share is there
        world.num_waiting, taken = 0, dict[str, int]()
        played = tasks(number)

        async def measure() -> None:
            while world.num_waiting < number:
                await asyncio.sleep(0.05)
            taken["bytes"] = private_bytes()
            assert world.gate is not None
            world.gate.set()

        async def gated(task: Task, policy: Policy, of: World) -> None:
            if not task.trajectory:
                world.gate = asyncio.Event()
                taken["measure"] = id(asyncio.get_running_loop().create_task(measure()))
            await with_tools(task, policy, of)

        before = private_bytes()
        with playing(TimedEngine(lambda row, turn: MEAN_TOKENS, 0.0), gated, world, turns=2, number=number) as again:
            again(played)
    tokens = MEAN_TOKENS * (8 + 4 + 8)  # ids, log-probs and versions
    per = (taken["bytes"] - before) / number - tokens
    print(f"{number} conversations that wait: {per / 1000:.1f} kB each besides {tokens} bytes of tokens", flush=True)
    return [Figure("kB of a conversation that waits", per / 1000, most=100.0)]


class Counter:
    """An environment that counts its steps."""

    def reset(self, seed: int) -> int:
        self.steps = seed
        return self.steps

    def step(self, text: str) -> int:
        self.steps += 1
        return self.steps


def environments(options: argparse.Namespace) -> list[Figure]:
    number, processes = 1024, 8
    here = os.path.dirname(os.path.abspath(__file__))

    async def played(calls: Calls, session: int) -> None:
        answers = [await calls.call(f"s/{session}", "counter", "reset", {"seed": session})]
        answers += [await calls.call(f"s/{session}", "counter", "step", {"text": "on"}) for _ in range(4)]
        assert [answer.value for answer in answers] == [session + step for step in range(5)], answers
        await calls.end(f"s/{session}")

    async def all_of_them() -> tuple[float, float]:
        target = Target("conversations:Counter", {}, CallLimits(60.0, 1 << 30, 16, 1 << 20))
        calls = Calls({"counter": target}, processes=processes, confinement="Preferred", network=(), pythonpath=[here])
        try:
            begun = time.perf_counter()
            await calls.check()
            started = time.perf_counter()
            await asyncio.gather(*(played(calls, session) for session in range(number)))
            return started - begun, time.perf_counter() - started
        finally:
            calls.close()

    start, seconds = asyncio.run(all_of_them())
    print(
        f"{number} environments in {processes} processes: {start:.1f} s to start, then {seconds:.1f} s for "
        f"{5 * number} calls, {5 * number / seconds:.0f} a second",
        flush=True,
    )
    return []  # that each of them answered is all that is asked


class CountedEngine(TransformersRollout):
    """With a tiny model that has places for a very long row. Counts its steps."""

    def __init__(self) -> None:
        super().__init__(tiny_model(), torch.device("cpu"), (END,), 1.0, lambda: 1 << 29)
        self.num_steps = 0
        self.first_step: dict[tuple[int, int], int] = {}
        """By row and turn, the step in which its first token was decoded."""
        self._begun: dict[int, int] = {}
        """By row, the turn of which no token is decoded yet."""
        self._woken = threading.Event()

    def submit(self, requests: Requests) -> None:
        super().submit(requests)
        self._begun |= zip(requests.row_ids.tolist(), requests.turns.tolist(), strict=True)

    def advance(self, most_steps: int | None = None) -> EndedRequests:
        ended = super().advance(1)
        self._note(ended)
        while not len(ended) and (self.load.running or self.load.waiting) and not self._woken.is_set():
            ended = super().advance(1)
            self._note(ended)
        self._woken.clear()
        return ended

    def wake(self) -> None:
        self._woken.set()
        super().wake()

    def _note(self, ended: EndedRequests) -> None:
        """Which rows have their first token after a step."""
        self.num_steps += 1
        done = set(ended.row_ids.tolist())
        waiting = np.array([row for row in self._begun if row not in done], np.int64)
        tokens = self.peek(waiting).response_ids.lengths.tolist() if len(waiting) else []
        done |= {row for row, number in zip(waiting.tolist(), tokens, strict=True) if number}
        for row in done & self._begun.keys():
            self.first_step[row, self._begun.pop(row)] = self.num_steps


def tiny_model() -> torch.nn.Module:
    """One layer of random weights."""
    config = Qwen3Config(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        vocab_size=len(tokenizer()),
        max_position_embeddings=2 * LONG_ROW,
        architectures=["Qwen3ForCausalLM"],
    )
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        return random_policy(folder, torch.float32, 0)


def steps(options: argparse.Namespace) -> list[Figure]:
    number = 16
    engine = CountedEngine()
    lengths, world = drawn_lengths(number + 1, TURNS), WaitingWorld(TOOL_SECONDS, engine)
    num_played = 0
    beside = list[int]()
    """Tokens of the long row's prompt and what followed, after each of its turns."""

    async def played(task: Task, policy: Policy, of: World) -> None:
        nonlocal num_played
        if not task.trajectory:
            tokens = np.full(LONG_ROW, 20)
            while num_played < number and not policy.is_over:
                sampled = await policy.complete(tokens, max_tokens=64)
                beside.append(len(tokens) + len(sampled))
                tokens = np.full(1, 20)
            return
        while not beside_is_there():
            await asyncio.sleep(0.01)
        most = lengths[task.trajectory].tolist()
        await policy.chat(None, tools=[calculator.SCHEMA], max_tokens=most[0])
        for turn in range(1, TURNS):
            answer = await of.call("calculator", {"expression": "27*48+35"})
            await policy.chat([{"role": "tool", "content": str(answer.value)}], max_tokens=most[turn])
        num_played += 1

    def beside_is_there() -> bool:
        return (0, 0) in engine.first_step

    with playing(engine, played, world, turns=1000, number=number + 1) as play:
        play(tasks(number + 1))
    waited = []
    for key, step in world.answered_at.items():
        _, row, _, turn, _ = key.split("/")
        waited.append(engine.first_step[int(row), int(turn)] - step)
    print(
        f"decode steps from an answer until its conversation decodes again, beside a row of {sum(beside)} tokens: "
        f"median {statistics.median(waited):g}, most {max(waited)}, of {len(waited)}",
        flush=True,
    )
    assert sum(beside) > LONG_ROW and len(waited) == number * (TURNS - 1)
    return [Figure("decode steps from an answer to the next", max(waited), most=2.0)]


PARTS = {"speed": speed, "turns": turns, "memory": memory, "environments": environments, "steps": steps}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all of them, where none is named")
    parser.add_argument("--step-seconds", type=float, default=0.02)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    gc.collect()
    gc.freeze()
    figures = [figure for name in options.parts or PARTS for figure in PARTS[name](options)]
    return exit_code(figures)


if __name__ == "__main__":
    sys.exit(main())
