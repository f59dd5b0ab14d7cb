"""What the endpoint for agents costs beside decoding.

    python benchmarks/endpoint.py [--clients 64] [--tokens 256] [--step-seconds 0.025] [--pairs 3]

Event loop, policy, chat renderer, keys and server are those of a job. The engine is a stand-in whose decode step takes
as long as `--step-seconds` says, for any number of rows. The clients are coroutines of a process of their own
(`endpoint_clients.py`), each with one call, all at once.

direct  the same turns asked of the policy by a run function, without HTTP
whole   over the endpoint, an answer as one body
stream  over the endpoint, an answer as a stream

A round says how long the calls take, from the first to the last, and the CPU of the process that serves. Rounds
alternate, and the first of each kind counts for nothing; medians and bounds are at the end. Exits with 1 where a median
misses its limit, and names it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from conversations import TimedEngine, tasks, tokenizer
from figures import Figure, exit_code

from rljob_api.v1alpha1 import ConversationSpec
from rljob_worker.conversations.agents.agent_pool import AgentPool
from rljob_worker.conversations.agents.policy_endpoint import ServedPolicy
from rljob_worker.conversations.playing.loop import Conversations
from rljob_worker.conversations.playing.plays import Play
from rljob_worker.conversations.policy import Bounds, Policy
from rljob_worker.conversations.rendering.chat_renderer import ChatRenderer
from rljob_worker.conversations.run_functions.program import program
from rljob_worker.conversations.task import Task
from rljob_worker.conversations.world import SharedWorld, World
from rljob_worker.engines.rollout.requests import Sampling
from rljob_worker.stages.stage import Alone

CLIENTS = Path(__file__).parent / "endpoint_clients.py"
TOKEN, PORT = "agents-token", 19410

Round = tuple[float, float]
"""Seconds, and CPU seconds of the process that serves."""


async def direct(task: Task, policy: Policy, world: World) -> None:
    """A turn without HTTP."""
    await policy.chat(list(task.messages))


def timed(conversations: Conversations, num_clients: int) -> Round:
    """One round."""
    begun, cpu = time.perf_counter(), time.process_time()
    played = conversations.play(Play(tasks(num_clients), Sampling(), "step-1"), Alone())
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    failed = [(item.failed, item.message) for item in played if item.failed]
    assert not failed, failed[:3]
    return seconds, cpu


def conversations_with(
    run: Callable[..., Awaitable[None]], options: argparse.Namespace, shared: SharedWorld
) -> Conversations:
    """The loop of a job, beside the stand-in."""
    engine = TimedEngine(lambda row, turn: options.tokens, options.step_seconds)
    bounds = Bounds(turns=1, rows=1, response_tokens=options.tokens, row_tokens=4096)
    return Conversations(engine, run, ChatRenderer(tokenizer()), bounds, concurrency=options.clients, shared=shared)


def main(options: argparse.Namespace) -> int:
    """Print a line for each round, and the figures; 1 where one misses its limit."""
    spec = ConversationSpec.model_validate({"agentPool": {}, "endpoint": {"port": PORT}})
    pool = AgentPool(spec, ServedPolicy("actor"), TOKEN)
    alone = conversations_with(direct, options, SharedWorld())
    served = conversations_with(program, options, SharedWorld(programs=pool))
    served.prepare(pool.open())
    command = [sys.executable, str(CLIENTS), str(PORT), TOKEN, str(options.clients)]
    results: dict[str, list[Round]] = {"direct": [], "whole": [], "stream": []}
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as clients:
        assert clients.stdin is not None
        for number in range(options.pairs + 1):
            for kind, rounds in results.items():
                if kind != "direct":
                    print(kind, file=clients.stdin, flush=True)
                result = timed(alone if kind == "direct" else served, options.clients)
                print(f"{kind}: {result[0]:.3f} s, {result[1]:.3f} s of CPU", flush=True)
                rounds.extend([result] if number else [])
    served.close()
    alone.close()
    return exit_code(shown(results, options))


def shown(results: dict[str, list[Round]], options: argparse.Namespace) -> list[Figure]:
    """The figures of docs/benchmarks.md."""
    direct_rounds, figures = results["direct"], list[Figure]()
    for kind in ("whole", "stream"):
        pairs = list(zip(direct_rounds, results[kind], strict=True))
        shares = [one[0] / over[0] for one, over in pairs]
        print(f"{kind}: {spread(shares)} of direct calls")
        more = [(over[1] - one[1]) * 1e3 / options.clients for one, over in pairs]
        print(f"{kind}: {spread(more)} ms of CPU more for a request")
        figures.append(Figure(f"{kind}, of direct calls", statistics.median(shares), least=0.85))
        if kind == "whole":
            figures.append(Figure("ms of CPU of a request", statistics.median(more), most=3.0))
    pairs = list(zip(results["whole"], results["stream"], strict=True))
    more = [(stream[1] - whole[1]) * 1e3 / options.clients / options.tokens for whole, stream in pairs]
    print(f"a streamed token: {spread(more)} ms of CPU more than one in a whole answer")
    print(f"load {os.getloadavg()[0]:.1f}")
    return [*figures, Figure("ms of CPU of a streamed token", statistics.median(more), most=0.1)]


def spread(values: list[float]) -> str:
    """Median, and bounds."""
    return f"{statistics.median(values):.4f} ({min(values):.4f}-{max(values):.4f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--step-seconds", type=float, default=0.025)
    parser.add_argument("--pairs", type=int, default=3)
    sys.exit(main(parser.parse_args()))
