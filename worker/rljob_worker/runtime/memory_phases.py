"""Memory of a process that generates and trains in turn: what the other needs sleeps, where it is worth it."""

from __future__ import annotations

from collections.abc import Iterable

from rljob_api.memory.phases import LEAST_ASLEEP_BYTES
from rljob_worker.engines.protocols import TrainEngine
from rljob_worker.engines.rollout.protocol import Depth, RolloutEngine


def is_worth_sleeping(num_bytes: int) -> bool:
    """Whether to give so much back and to take it again in the next step."""
    return num_bytes >= LEAST_ASLEEP_BYTES


def begin_generation(engines: Iterable[TrainEngine]) -> None:
    """Let engines sleep that train on the device that is to generate."""
    for engine in engines:
        if is_worth_sleeping(engine.held_bytes()):
            engine.sleep()


def end_generation(engines: Iterable[RolloutEngine], *, gets_weights: bool) -> None:
    """Let engines sleep that have generated. gets_weights: new ones come before they generate again, so that their own
    copy of them is not needed. After a validation nobody sleeps: what follows it generates."""
    depth: Depth = "Weights" if gets_weights else "Cache"
    for engine in engines:
        if is_worth_sleeping(engine.held_bytes(depth)):
            engine.sleep(depth)
