"""A server of the package openenv itself: a number below ten is guessed. `python openenv_server.py FOLDER`, which gets
the file `port`; run in an environment that has the package."""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_app


class Guess(Action):
    number: int


class Hint(Observation):
    text: str


class Guessing(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.secret = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **columns: Any) -> Hint:
        self.secret = (seed or 0) % 10
        return Hint(text=f"guess, {columns.get('name', 'you')}")

    def step(self, action: Guess, timeout_s: float | None = None, **columns: Any) -> Hint:
        is_right = action.number == self.secret
        hint = "right" if is_right else "higher" if action.number < self.secret else "lower"
        return Hint(text=hint, reward=1.0 if is_right else -0.25, done=is_right)

    @property
    def state(self) -> State:
        return State()


application = create_app(Guessing, Guess, Hint, max_concurrent_envs=8)
folder, listener = Path(sys.argv[1]), socket.create_server(("127.0.0.1", 0))
(folder / "new").write_text(str(listener.getsockname()[1]))
(folder / "new").rename(folder / "port")
asyncio.run(uvicorn.Server(uvicorn.Config(application, log_level="error")).serve(sockets=[listener]))
