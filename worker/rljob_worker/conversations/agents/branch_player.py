"""Answers the calls of an agent with turns of its trajectory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any, TypeVar

import numpy as np

from rljob_worker.batch import Indices
from rljob_worker.conversations.branches import Branches
from rljob_worker.conversations.messages import Renderer
from rljob_worker.conversations.row_sampling import ConversationOver, Hear, RowsInUse
from rljob_worker.conversations.trajectory import Sampled
from rljob_worker.endpoint.calls import (
    CalledFunction,
    ChatCall,
    LikelyTokens,
    PartialTurn,
    PolicyTurn,
    RequestRefused,
    Say,
    TokenCall,
)
from rljob_worker.engines.rollout.requests import Ending
from rljob_worker.errors import BadData, InvalidJob

Turn = TypeVar("Turn")


async def unless_failed(running: asyncio.Future[Turn], *failures: asyncio.Future[None]) -> Turn:
    """What `running` comes to, or what one of the failures raises before."""
    awaited: list[asyncio.Future[Any]] = [running, *failures]
    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
    for failure in failures:
        if failure.done():
            failure.result()
    return running.result()


def likely_tokens(sampled: Sampled, number: int, renderer: Renderer | None = None) -> LikelyTokens | None:
    """As many as are asked for, of which there may be more; with their texts, given a renderer. None where none are."""
    top = sampled.top_log_probs
    if top is None or not number:
        return None
    ids, log_probs = top.tokens[:, :number], top.log_probs[:, :number]
    different: Indices = np.unique(ids).astype(np.int64)
    texts = {} if renderer is None else dict(zip(different.tolist(), renderer.texts_of(different), strict=True))
    return LikelyTokens(ids, log_probs, texts)


class BranchPlayer:
    """One trajectory's. What ends the trajectory rather than a call is kept for who waits for it."""

    def __init__(self, branches: Branches) -> None:
        self._branches = branches
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with what ends the trajectory, such as a turn that does not replay; never done otherwise."""

    async def chat(self, call: ChatCall, say: Say | None = None) -> PolicyTurn:
        """As `endpoint.calls.TurnPlayer`."""
        hear = None if say is None else self._hear(say)
        asked = self._branches.reply(call.messages, call.tools, call.max_tokens, hear, call.top_log_probs)
        turn = await self._guarded(asked)
        sampled, message = turn.sampled, turn.message
        renderer = self._branches.renderer
        texts = renderer.texts_of(sampled.tokens) if call.wants_log_probs else ()
        calls = [
            CalledFunction(item.id, item.name, json.dumps(item.arguments, ensure_ascii=False))
            for item in message.tool_calls
            if item.arguments is not None
        ]
        return PolicyTurn(
            "length" if message.finish_reason == "Length" else "tool_calls" if calls else "stop",
            turn.prompt.tolist(),
            sampled.tokens.tolist(),
            sampled.log_probs.tolist(),
            texts,
            message.content,
            message.reasoning,
            calls,
            likely_tokens(sampled, call.top_log_probs, renderer),
        )

    def _hear(self, say: Say) -> Hear:
        """Says what a turn's tokens say, while they are sampled."""
        begun = self._branches.renderer.begin_turn()
        return lambda tokens: say(PartialTurn(*begun.read(tokens)))

    async def generate(self, call: TokenCall) -> PolicyTurn:
        """As `endpoint.calls.TurnPlayer`."""
        prompt: Indices = np.array(call.token_ids, np.int64)
        asked = self._branches.generate(prompt, call.max_tokens, call.top_log_probs)
        sampled: Sampled = await self._guarded(asked, "token_ids")
        return PolicyTurn(
            "length" if sampled.ending == Ending.LENGTH else "stop",
            call.token_ids,
            sampled.tokens.tolist(),
            sampled.log_probs.tolist(),
            likely=likely_tokens(sampled, call.top_log_probs),
        )

    async def _guarded(self, turn: Awaitable[Turn], field: str = "messages") -> Turn:
        """Errors that are the agent's own are refusals. field: what it sent. Raises RequestRefused."""
        try:
            return await turn
        except ConversationOver:
            message = "the conversation is over: it is out of turns or of tokens"
            raise RequestRefused(message, code="context_length_exceeded") from None
        except RowsInUse as error:
            message = f"{error}: wait for the calls under way, or raise rollout.conversation.maxRows"
            raise RequestRefused(message, status=409, code="conflict") from None
        except (BadData, InvalidJob, ValueError) as error:
            raise RequestRefused(str(error), param=field) from None
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if not self.failure.done():
                self.failure.set_exception(error)
            raise RequestRefused("the trajectory is over", status=409, code="over") from None
