"""Ranks as real processes joined by gloo. Those of a test session stay for its next test: a process that has trained
once is four times as fast as one that begins. Whatever they do, all ranks of a communicator call it alike."""

from __future__ import annotations

import atexit
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.tensor.debug

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.engines.tests.collective_order import divergence, read_calls, written_calls
from rljob_worker.tests.forking import forking


class Ranks:
    """Processes that run one piece of work after the other, each time in a new world."""

    def __init__(self, *preload: str, are_kept: bool = True) -> None:
        """preload: modules that are imported once for all, where nobody has started the fork server yet. are_kept:
        whether more work comes after the first, which must leave its process as it was."""
        self._context = forking(*preload)
        self._are_kept = are_kept
        self._ranks: list[tuple[BaseProcess, Connection]] = []

    def run(
        self, world_size: int, work: Callable[..., Any], directory: Path, *arguments: Any, deadline_seconds: float
    ) -> list[Any]:
        """What `work(rank, *arguments)` returned, in rank order. After a failure or an interrupt all processes are new:
        from these would come answers to what was asked before."""
        directory.mkdir(parents=True, exist_ok=True)
        try:
            self._ask(world_size, work, directory, arguments, deadline_seconds)
        except BaseException:
            self.end()
            raise
        assert not (found := _divergence(world_size, directory)), found
        return [torch.load(directory / f"{rank}.pt", weights_only=False) for rank in range(world_size)]

    def _ask(
        self, world_size: int, work: Callable[..., Any], directory: Path, arguments: Any, deadline_seconds: float
    ) -> None:
        while len(self._ranks) < world_size:
            self._ranks.append(self._start())
        connections = [connection for _, connection in self._ranks[:world_size]]
        for rank, connection in enumerate(connections):
            connection.send((rank, world_size, work, directory, arguments))
        failures = _failures(connections, deadline_seconds)
        assert not failures, "\n".join([*failures, _divergence(world_size, directory)])

    def _start(self) -> tuple[BaseProcess, Connection]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._are_kept), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def end(self) -> None:
        for process, connection in self._ranks:
            connection.close()
            process.kill()
            process.join()
        self._ranks.clear()


def run_ranks(
    world_size: int,
    work: Callable[..., Any],
    directory: Path,
    *arguments: Any,
    deadline_seconds: float = 5 * TEST_TIMEOUT_SECONDS,
) -> list[Any]:
    """Run `work(rank, *arguments)` in the session's processes; what each returned, in rank order."""
    return _of_session().run(world_size, work, directory, *arguments, deadline_seconds=deadline_seconds)


def run_fresh_ranks(
    world_size: int,
    work: Callable[..., Any],
    directory: Path,
    *arguments: Any,
    preload: tuple[str, ...] = (),
    deadline_seconds: float = 5 * TEST_TIMEOUT_SECONDS,
) -> list[Any]:
    """As `run_ranks`, in processes that have done nothing before and do nothing after."""
    ranks = Ranks(*preload, are_kept=False)
    try:
        return ranks.run(world_size, work, directory, *arguments, deadline_seconds=deadline_seconds)
    finally:
        ranks.end()


@cache
def _of_session() -> Ranks:
    ranks = Ranks()
    atexit.register(ranks.end)
    return ranks


def _failures(connections: list[Connection], deadline_seconds: float) -> list[str]:
    """One line for each rank that failed; a rank that fails leaves all others waiting."""
    running = {connection: rank for rank, connection in enumerate(connections)}
    while running:
        ready = wait(list(running), timeout=deadline_seconds)
        result = [(running.pop(connection), _answer(connection)) for connection in connections if connection in ready]
        failures = [f"rank {rank}: {answer}" for rank, answer in result if answer]
        if failures or not ready:
            return failures or [f"rank {rank} did not end in {deadline_seconds} seconds" for rank in running.values()]
    return []


def _answer(connection: Connection) -> str:
    try:
        answer: str = connection.recv()
    except (EOFError, ConnectionError):
        return "its process ended"
    return answer


def _serve(connection: Connection, is_kept: bool) -> None:
    """Until the session ends, or a piece of work fails."""
    torch.set_num_threads(1)
    for name in ("all_gather_object", "broadcast_object_list", "gather_object", "scatter_object_list"):
        setattr(dist, name, _refuse)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        try:
            before = _rank_environment()
            _work(*task)
            if is_kept:
                _assert_unchanged(before, getattr(task[2], "__qualname__", repr(task[2])))
        except BaseException:
            connection.send(traceback.format_exc())
            raise
        connection.send("")


def _work(rank: int, world_size: int, work: Callable[..., Any], directory: Path, arguments: tuple[Any, ...]) -> None:
    torch.manual_seed(0)
    store = dist.FileStore(str(directory / "store"), world_size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=TEST_TIMEOUT_SECONDS)
    )
    with written_calls(_calls_of(rank, directory)):
        result = work(rank, *arguments)
    torch.save(result, directory / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
    # DTensors of the next world would get meshes of this one, which are equal to theirs
    torch.distributed.tensor.debug._clear_sharding_prop_cache()


def _divergence(world_size: int, directory: Path) -> str:
    """Where ranks called collectives in another order, or other ones, if they did."""
    return divergence([read_calls(_calls_of(rank, directory)) for rank in range(world_size)])


def _calls_of(rank: int, directory: Path) -> Path:
    return directory / f"{rank}.calls"


def _rank_environment() -> dict[str, Any]:
    """What a piece of work may change for a while only."""
    return {**vars(dist), "torch.compile": torch.compile, "os.environ": dict(os.environ)}


def _assert_unchanged(before: dict[str, Any], work: str) -> None:
    after = _rank_environment()
    changed = [name for name in before if after.get(name) != before[name]]
    assert not changed, f"{work} left {', '.join(changed)} changed for the work after it"


def _refuse(*arguments: Any, **options: Any) -> None:
    raise AssertionError("ranks send each other tensors: objects would be pickled")
