"""A user that a served model plays: an environment whose observations another model writes.

    environments:
      - name: customer
        run: rljob_worker.conversations.simulated_user:SimulatedUser
        options: {url: "http://models:8000", model: user, instructions: "You want to return {item}. ..."}
        environmentVariables: [MODEL_TOKEN]
        network: ["models:8000"]

The server answers `/v1/chat/completions`. Instructions say what the model wants, and that it writes DONE once it has
it; the job's rewards judge the conversation.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

import aiohttp

CHAT = "/v1/chat/completions"
DONE = "DONE"
TOKEN_VARIABLE = "MODEL_TOKEN"
"""The variable with the token that requests carry, where it is set."""
_BEGIN = {"role": "user", "content": "Begin: write your first message."}
_THOUGHT = re.compile(r"^.*?</think>\s*", re.DOTALL)


class SimulatedUser:
    """One conversation with a model in the role of a user."""

    def __init__(
        self, url: str, model: str, instructions: str, temperature: float = 0.0, most_tokens: int = 256
    ) -> None:
        """instructions: for the model that plays; {name} is the column `name` of the data."""
        self._url, self._model, self._instructions = url.rstrip("/") + CHAT, model, instructions
        self._sampling = {"temperature": temperature, "max_tokens": most_tokens}
        self._messages: list[dict[str, str]] = []
        self._seed = 0

    async def reset(self, seed: int, **columns: str) -> str:
        """What the user says first. Raises RuntimeError for a server that answers otherwise than with a message."""
        self._seed = seed
        self._messages = [{"role": "system", "content": filled(self._instructions, columns)}, _BEGIN]
        return (await self._said())[0]

    async def step(self, text: str) -> tuple[str, float, bool]:
        """What the user says then, no reward, and whether the user is done."""
        # the one that is trained is the user of the one that plays the user
        self._messages.append({"role": "user", "content": text})
        said, is_done = await self._said()
        return said, 0.0, is_done

    async def _said(self) -> tuple[str, bool]:
        token = os.environ.get(TOKEN_VARIABLE, "")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = {"model": self._model, "messages": self._messages, "seed": self._seed, **self._sampling}
        try:
            async with (
                aiohttp.ClientSession(headers=headers) as http,
                http.post(self._url, json=request) as response,
            ):
                text = message_of(response.status, await response.text())
        except aiohttp.ClientError as error:
            raise RuntimeError(f"the model at {self._url} cannot be reached: {error}") from error
        self._messages.append({"role": "assistant", "content": text})
        return text.replace(DONE, "").strip(), DONE in text


def message_of(status: int, body: str) -> str:
    """The text of an answer, without thoughts. Raises RuntimeError for another answer."""
    try:
        answer: Any = json.loads(body)
        return _THOUGHT.sub("", str(answer["choices"][0]["message"]["content"]))
    except (ValueError, LookupError, TypeError) as error:
        raise RuntimeError(f"the model answered with status {status} and no message: {body[:200]}") from error


def filled(instructions: str, columns: Mapping[str, str]) -> str:
    """The instructions with columns of the data in them. Raises ValueError for one that rows have not."""
    try:
        return instructions.format_map(columns)
    except (KeyError, IndexError) as error:
        raise ValueError(
            f"the instructions ask for the column {error}, and rows have {', '.join(columns) or 'none'}: name it under "
            "rollout.conversation.columns"
        ) from error
