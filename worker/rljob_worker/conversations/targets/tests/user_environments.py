"""Environments as users write them: what their methods return, in every form."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel


class Tuples:
    """Counts down from its seed."""

    def __init__(self, by: int = 1) -> None:
        self.by, self.left, self.name = by, 0, ""

    def reset(self, seed: int, name: str = "nobody") -> str:
        self.left, self.name = seed, name
        return f"{name}: {seed} left"

    def step(self, text: str) -> tuple[str, float, bool]:
        self.left -= self.by
        return f"{text}: {self.left} left", 0.5, self.left <= 0


@dataclass
class Seen:
    observation: str
    reward: float = 0.0
    done: bool = False
    metrics: dict[str, float] = field(default_factory=dict)


class Dataclasses:
    def reset(self, seed: int, **columns: str) -> Seen:
        return Seen(f"{seed} {sorted(columns)}")

    def step(self, text: str) -> Seen:
        return Seen(text, 1.0, True, {"length": len(text)})


class Dictionaries:
    def reset(self) -> dict[str, Any]:
        return {"observation": [{"role": "user", "content": "look"}]}

    def step(self, text: str) -> dict[str, Any]:
        return {"observation": {"board": [1, 2], "turn": 3}, "reward": None, "terminated": False, "truncated": True}


class Models(BaseModel):
    text: str
    done: bool


class Gymnasium:
    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> tuple[Models, dict[str, Any]]:
        return Models(text="begin", done=False), {}

    def step(self, action: str) -> tuple[Models, int, bool, bool, dict[str, Any]]:
        return Models(text=action, done=True), 1, False, True, {"metrics": {"hits": 2}}


class Asynchronous:
    def __init__(self) -> None:
        self.closed = False

    async def reset(self, seed: int) -> str:
        await asyncio.sleep(0)
        return "begin"

    async def step(self, text: str) -> tuple[str, float, bool]:
        await asyncio.sleep(0)
        return text, 1.0, True

    async def close(self) -> None:
        self.closed = True


class Returning:
    """Returns what it is given."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def reset(self, seed: int) -> Any:
        return self.value

    def step(self, text: str) -> Any:
        return self.value


def made(by: int) -> Tuples:
    """An environment as a function makes it."""
    return Tuples(by)
