"""What episodes cost besides simulating and generating.

    python benchmarks/embodied.py [overhead | overlap | environments | kills]

Pool, processes and event loop are those of a job; environments and the engine are stand-ins that wait.

overhead      a process of environments of 5 ms a step in the pool over one of them in a bare loop, in turns: steps per
              second, with chunks of 8 actions and of 1, and with two environments, of which one steps while the other's
              answer is read; time of ours for a step of an environment that takes none, and how long the cores were
              at it, in the worker and in the process
overlap       episodes whose simulation takes as long as their generation: time over that of the longer one alone
environments  1,024 environments in 64 processes, reset and stepped once: seconds
rows          64 decisions x 512 episodes between two data buffers, put and got: seconds, and those of cores, over what
              simulating takes at 5 ms a step in 64 processes
kills         a worker with 4 processes of simulators; one of each kind of process is killed with SIGKILL: processes and
              shared memory that are left
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from planes.leftovers import shared_directory
from waiting_environment import DIMENSIONS, WaitingEnvironment

from rljob_api.v1alpha1 import SimulatorSpec
from rljob_worker.batch import Batch, Column, Indices
from rljob_worker.conversations.playing.loop import Conversations
from rljob_worker.conversations.playing.plays import Play
from rljob_worker.conversations.policy import Bounds
from rljob_worker.conversations.task import Task
from rljob_worker.databuffer.tests.gang import as_processes, two_stages
from rljob_worker.embodied.episode import Episodes
from rljob_worker.embodied.observation import Actions, Observation
from rljob_worker.embodied.simulators.environment import encoded
from rljob_worker.embodied.simulators.job_pool import simulator_settings
from rljob_worker.embodied.simulators.pool import SimulatorPool
from rljob_worker.embodied.simulators.session import SimulatorSession
from rljob_worker.embodied.simulators.settings import PoolLimits, SimulatorSettings
from rljob_worker.engines.rollout.requests import EndedRequests, Ending, Load, Requests, Sampling
from rljob_worker.sandbox.guardian.environment import child_environment
from rljob_worker.stages.stage import Alone
from rljob_worker.vision.pictures import PictureList

Value = TypeVar("Value")
MARK = "RLJOB_BENCHMARK_KILLS"
RUN, CHUNK = "waiting_environment:WaitingEnvironment", 8
HERE = Path(__file__).parent


def pool_of(seconds: float, processes: int, environments: int = 1) -> SimulatorPool:
    settings = SimulatorSettings(RUN, {"seconds": seconds})
    return SimulatorPool(settings, PoolLimits(processes, environments), child_environment([HERE]))


def with_pool(pool: SimulatorPool, work: Callable[[SimulatorPool], Awaitable[Value]]) -> Value:
    async def run() -> Value:
        try:
            await pool.start()
            return await work(pool)
        finally:
            pool.close()

    return asyncio.run(run())


# ---- overhead


def pooled_seconds(seconds: float, chunk: int, steps: int, environments: int = 1) -> tuple[float, float]:
    """A step's of the environments of one process in the pool: time, and time of cores."""
    rounds = steps // chunk // environments

    async def work(pool: SimulatorPool) -> tuple[float, float]:
        actions = np.random.default_rng(0).uniform(-1, 1, (chunk, DIMENSIONS))
        sessions = [pool.session() for _ in range(environments)]

        async def play(session: SimulatorSession, rounds: int) -> None:
            for _ in range(rounds):
                await session.step(actions)

        await asyncio.gather(*(session.reset(1, {}) for session in sessions))
        await asyncio.gather(*(play(session, 1) for session in sessions))
        begun, cores = time.perf_counter(), core_seconds()
        await asyncio.gather(*(play(session, rounds) for session in sessions))
        number = rounds * chunk * environments
        return (time.perf_counter() - begun) / number, (core_seconds() - cores) / number

    return with_pool(pool_of(seconds, 1, environments), work)


def core_seconds() -> float:
    """Of this process and of those that it has started."""
    ticks = 0
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def bare_seconds(seconds: float, steps: int) -> float:
    """A step's, in a loop."""
    environment, action = WaitingEnvironment(seconds), np.zeros(DIMENSIONS)
    environment.reset(1, {})
    begun = time.perf_counter()
    for _ in range(steps):
        environment.step(action)
    return (time.perf_counter() - begun) / steps


def overhead(pairs: int) -> None:
    for chunk, several in ((8, 1), (1, 1), (1, 2)):
        ratios = [bare_seconds(0.005, 400) / pooled_seconds(0.005, chunk, 400, several)[0] for _ in range(pairs)]
        bare = [bare_seconds(0.0, 4000) for _ in range(pairs)]
        own = [np.array(pooled_seconds(0.0, chunk, 4000, several)) - seconds for seconds in bare]
        times, cores = (sorted(1000 * values) for values in np.transpose(own))
        print(
            f"chunk {chunk}, {several} in a process: {statistics.median(ratios):.3f} of bare steps per second at 5 ms "
            f"a step ({min(ratios):.3f} to {max(ratios):.3f}); of ours a step {statistics.median(times):.3f} ms "
            f"({times[0]:.3f} to {times[-1]:.3f}), {statistics.median(cores):.3f} ms of cores ({cores[0]:.3f} to "
            f"{cores[-1]:.3f})"
        )


# ---- overlap


class WaitingEngine:
    """A RolloutEngine that takes `seconds` for each decision, up to `most` at once."""

    def __init__(self, seconds: float, most: int) -> None:
        self.version = 0
        self._seconds, self._most = seconds, most
        self._queue: deque[tuple[int, int, int]] = deque()
        self._woken = threading.Event()

    def submit(self, requests: Requests) -> None:
        self._queue += zip(
            requests.row_ids.tolist(), requests.turns.tolist(), requests.max_tokens.tolist(), strict=True
        )

    def advance(self, most_steps: int | None = None) -> EndedRequests:
        self._woken.clear()
        ended = [self._queue.popleft() for _ in range(min(self._most, len(self._queue)))]
        if self._seconds:
            time.sleep(self._seconds * len(ended))
        tokens = Column.ragged([np.ones(most, np.int64) for _, _, most in ended])
        return EndedRequests(
            np.array([row for row, _, _ in ended], np.int64),
            np.array([turn for _, turn, _ in ended], np.int64),
            tokens,
            Column.from_lengths(np.zeros(len(tokens.values), np.float32), tokens.lengths),
            Column.from_lengths(np.zeros(len(tokens.values), np.int64), tokens.lengths),
            np.full(len(ended), Ending.LENGTH, np.int8),
        )

    def wake(self) -> None:
        self._woken.set()

    def abort(self, row_ids: Indices) -> None:
        self._queue.clear()

    def hold(self, row_ids: Indices) -> None: ...

    def release(self, row_ids: Indices) -> None: ...

    @property
    def load(self) -> Load:
        return Load(0, len(self._queue), 0, 0)


class StillPolicy:
    """Acts not at all."""

    num_tokens = CHUNK * DIMENSIONS
    allowed_tokens = np.array([1])

    def prompt(self, observation: Observation) -> Indices:
        return np.ones(4, np.int64)

    def actions(self, tokens: Indices) -> Actions:
        return np.zeros((CHUNK, DIMENSIONS))


def overlap(pairs: int) -> None:
    """Each decision simulates for 8 x 5 ms in one of 16 processes, and is generated in 2.5 ms: both take as long. Each
    alone has the other without waiting."""
    for _ in range(pairs):
        simulating, generating, both = played_seconds(0.005, 0.0), played_seconds(0.0, 0.0025), played_seconds()
        print(
            f"simulation alone {simulating:.2f} s, generation alone {generating:.2f} s, overlapped {both:.2f} s: "
            f"{both / max(simulating, generating):.3f} of the longer"
        )


def played_seconds(step: float = 0.005, decision: float = 0.0025, episodes: int = 128, processes: int = 16) -> float:
    """Of episodes of 8 decisions, 4 in each process, of which an engine decides 4 at once."""
    fields = {"run": RUN, "options": {"seconds": step}, "settleSteps": 0, "maxSteps": 64}
    simulator = SimulatorSpec.model_validate(fields)
    limits = PoolLimits(processes, environments=4)
    pool = SimulatorPool(simulator_settings(simulator), limits, child_environment([HERE]))
    player = Episodes(pool, StillPolicy(), simulator)
    bounds = Bounds(simulator.num_decisions, simulator.num_decisions, 64, 128)
    loop = Conversations(
        WaitingEngine(decision, 4), player.play, None, bounds, concurrency=processes * 4, closing=pool.close
    )
    loop.prepare(player.start())
    loop.prepare(all_started(pool, processes))
    words = [{"role": "user", "content": "go"}]
    tasks = Task.of_group(words, np.ones(1, np.int64), {}, job_seed=1, group=0, group_size=episodes)
    begun = time.perf_counter()
    loop.play(Play(tasks, Sampling(seed=1), "benchmark", rows_per_trajectory=simulator.num_decisions), Alone())
    seconds = time.perf_counter() - begun
    loop.close()
    return seconds


async def all_started(pool: SimulatorPool, processes: int) -> None:
    """Until every process has its first environment."""
    slots = [await pool.acquire() for _ in range(processes * pool.limits.environments)]
    for slot in slots:
        pool.release(slot)


# ---- many environments


def environments(_: int) -> None:
    async def work(pool: SimulatorPool) -> tuple[float, float, int]:
        sessions = [pool.session() for _ in range(1024)]
        begun = time.perf_counter()
        await asyncio.gather(*(session.reset(number, {}) for number, session in enumerate(sessions)))
        reset = time.perf_counter() - begun
        await asyncio.gather(*(session.step(np.zeros((CHUNK, DIMENSIONS))) for session in sessions))
        return reset, time.perf_counter() - begun - reset, len(descendants(os.getpid()))

    reset, step, processes = with_pool(pool_of(0.0, 64, 16), work)
    print(
        f"1,024 environments: reset in {reset:.2f} s, stepped in {step:.2f} s; {processes - 1} processes and a guardian"
    )


# ---- rows


def rows(pairs: int, episodes: int = 512, decisions: int = 64) -> None:
    """Rows as played_rows makes them, with a picture of 64 x 64 pixels or without."""
    simulating = episodes * decisions * CHUNK * 0.005 / 64
    for what, pictures in (("state", 0), ("state and a picture of 64 x 64", 1)):
        batch = decision_rows(episodes * decisions, pictures)
        num_bytes = sum(column.values.nbytes for column in batch.columns.values())
        plan = two_stages(
            (1, 1),
            (1, 1),
            columns=tuple(batch.columns),
            batch_size=len(batch),
            group_size=1,
            memory=f"{64 + 3 * num_bytes >> 20}Mi",
            deadline_seconds=120.0,
        )
        with shared_directory() as directory, as_processes(plan, directory) as gang:
            writer, reader, times, cores = gang.client("rollout", 0), gang.client("train", 0), [], []
            for step in range(1, pairs + 2):
                ids = batch.row_ids + (step - 1) * len(batch)
                begun, before = time.perf_counter(), core_seconds()
                writer.put(step, "a->b", Batch(ids, ids, batch.num_tokens, batch.columns))
                received = reader.get(step, "a->b")
                times.append(time.perf_counter() - begun)
                cores.append(core_seconds() - before)
                reader.release(received)
        middle, of_cores = statistics.median(times[1:]), statistics.median(cores[1:])
        shares = [f"{100 * seconds / simulating:.2f} %" for seconds in (middle, of_cores)]
        print(
            f"{len(batch)} rows of {what}, {num_bytes / 1e6:.0f} MB: {middle:.3f} s ({min(times[1:]):.3f} to "
            f"{max(times[1:]):.3f}), {shares[0]} of {simulating:.1f} s; {of_cores:.3f} s of cores, {shares[1]}"
        )


def decision_rows(number: int, num_pictures: int) -> Batch:
    random = np.random.default_rng(0)
    picture = encoded(random.integers(0, 256, (64, 64, 3), dtype=np.uint8) // 64 * 64)
    tokens, prompt = CHUNK * DIMENSIONS, 20
    lengths, prompts = np.full(number, tokens), np.full(number, prompt)

    def ragged(values: np.ndarray) -> Column:
        return Column.from_lengths(values, lengths)

    words = random.integers(0, 256, number * tokens)
    columns = {
        "prompt_ids": Column.from_lengths(random.integers(0, 32000, number * prompt), prompts),
        "response_ids": ragged(words),
        "response_mask": ragged(np.ones(number * tokens, np.uint8)),
        "rollout_log_probs": ragged(random.normal(size=number * tokens).astype(np.float32)),
        "token_versions": ragged(np.zeros(number * tokens, np.int64)),
        "turn_ids": ragged(np.repeat(np.arange(number) % 64, tokens)),
        "state": Column.from_lengths(random.normal(size=number * 16).astype(np.float32), np.full(number, 16)),
        "rewards": Column.fixed(np.zeros(number)),
        "success": Column.fixed(np.zeros(number, np.uint8)),
        "finish_step": Column.fixed(np.zeros(number, np.int64)),
    }
    if num_pictures:
        columns["images"] = Column.binary([PictureList.pack([picture] * num_pictures)] * number)
    ids = np.arange(number)
    return Batch(ids, ids, lengths + prompts, columns)


# ---- kills


def kills(_: int) -> None:
    for kind in ("simulator", "guardian", "worker"):
        worker = subprocess.Popen(
            [sys.executable, __file__, "kills-worker"], env={**os.environ, MARK: "1"}, stdout=subprocess.PIPE, text=True
        )
        assert worker.stdout is not None
        worker.stdout.readline()
        (guardian,) = descendants(worker.pid, deep=False)
        shared = shared_files([worker.pid, *descendants(worker.pid)])
        victim = {"worker": worker.pid, "guardian": guardian, "simulator": descendants(guardian)[0]}[kind]
        os.kill(victim, signal.SIGKILL)
        said = "" if kind == "worker" else worker.stdout.readline().strip()
        if kind != "worker":
            worker.kill()
        worker.wait()
        time.sleep(2.0)
        left = [pid for pid in marked() if pid != os.getpid()]
        named = [path for path in shared if os.path.exists(path)]
        print(
            f"{kind} killed: {said or 'nothing more is said'}; of {len(shared)} mapped files in shared memory "
            f"{len(named)} are left, of processes {len(left)}"
        )


def kills_worker() -> None:
    """A worker that plays until it is killed."""

    async def work(pool: SimulatorPool) -> None:
        await all_started(pool, 4)
        sessions = [pool.session() for _ in range(4)]
        await asyncio.gather(*(session.reset(1, {}) for session in sessions))
        print("playing", flush=True)
        try:
            for _ in range(100):
                await asyncio.gather(*(session.step(np.zeros((CHUNK, DIMENSIONS))) for session in sessions))
            print("went on to the end", flush=True)
        except Exception as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        await asyncio.sleep(60)

    with_pool(pool_of(0.005, 4), work)


def shared_files(pids: Sequence[int]) -> set[str]:
    """Files in shared memory that processes have mapped; those without a name end with their processes."""
    result = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            paths = (line.partition("/")[2] for line in lines if "/dev/shm/" in line or "/memfd:" in line)
            result |= {f"/{path}" for path in paths}
    return result


def parents() -> dict[int, int]:
    result = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            result[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return result


def descendants(pid: int, *, deep: bool = True) -> list[int]:
    of = parents()
    children = [child for child, parent in of.items() if parent == pid]
    return children + [item for child in children for item in descendants(child)] if deep else children


def marked() -> list[int]:
    """Processes that a marked worker started."""
    result = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"{MARK}=1".encode() in Path(f"/proc/{name}/environ").read_bytes():
                result.append(int(name))
        except OSError:
            continue
    return result


PARTS: dict[str, Callable[[int], None]] = {
    "overhead": overhead,
    "overlap": overlap,
    "environments": environments,
    "rows": rows,
    "kills": kills,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=[*PARTS, "kills-worker"])
    parser.add_argument("--pairs", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.part == "kills-worker":
        kills_worker()
        return
    for name, part in PARTS.items():
        if arguments.part in (None, name):
            part(arguments.pairs)


if __name__ == "__main__":
    main()
