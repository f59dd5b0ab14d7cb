"""What an agent is answered where its messages cannot be shown to the model."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from rljob_worker.conversations.agents.branch_player import BranchPlayer
from rljob_worker.conversations.playing.tests.playing import END, LetterRenderer, tasks_of
from rljob_worker.conversations.policy import Bounds, Policy
from rljob_worker.conversations.rendering.chat_renderer import ChatRenderer
from rljob_worker.conversations.rendering.tests.chat_models import NO_TOOLS, tokenizer_with
from rljob_worker.conversations.trajectory import Sampled, Trajectory
from rljob_worker.endpoint.calls import ChatCall, RequestRefused, TokenCall
from rljob_worker.endpoint.tests.serving import agent_of, asked
from rljob_worker.engines.rollout.requests import Ending

ALTERNATING = (
    "{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}{% endfor %}" + NO_TOOLS
)
"""As those of Gemma and Mistral are."""
USER, SAID = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}
TOOL = {"type": "function", "function": {"name": "add", "description": "", "parameters": {"type": "object"}}}
DATA_URL = "data:image/png;base64,AAAA"
SHOWN = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": DATA_URL}}]}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (ChatCall([USER, USER]), "refuses the messages: roles must alternate"),
        (ChatCall([SAID]), "refuses the messages: roles must alternate"),
        (ChatCall([USER], (TOOL,)), "tools"),
        (ChatCall([SHOWN]), "is not shown any: take one that sees"),
        (
            ChatCall([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": DATA_URL + "A"}}]}]),
            "base64",
        ),
    ],
)
def test_what_the_template_does_not_show_is_refused_by_name_and_the_next_call_is_answered(call, message):
    async def generate(request):
        return Sampled(np.array([65]), np.zeros(1, np.float32), np.zeros(1, np.int64), Ending.LENGTH)

    async def play():
        trajectory = Trajectory(tasks_of("hi")[0])
        policy = Policy(trajectory, ChatRenderer(tokenizer_with(ALTERNATING)), Bounds(3, 1, 9, 200), generate)
        player = BranchPlayer(policy.branches())
        with pytest.raises(RequestRefused, match=message) as refused:
            await player.chat(call)
        assert (refused.value.status, refused.value.param) == (400, "messages") and not trajectory.rows
        assert (await player.chat(ChatCall([USER], max_tokens=1))).token_ids == [65]

    asyncio.run(play())


def test_of_two_calls_of_one_branch_at_once_the_second_is_a_conflict_and_may_be_made_again():
    async def play():
        begun, gate = asyncio.Event(), asyncio.Event()

        async def generate(request):
            begun.set()
            await gate.wait()
            return Sampled(np.array([65, END]), np.zeros(2, np.float32), np.zeros(2, np.int64), Ending.END_TOKEN)

        trajectory = Trajectory(tasks_of("hi")[0])
        policy = Policy(trajectory, LetterRenderer(), Bounds(3, 1, 90, 200), generate)
        async with agent_of(BranchPlayer(policy.branches())) as agent:
            gate.set()
            said = [USER, (await agent.post(asked("hi")))[1]["choices"][0]["message"]]
            gate.clear()
            begun.clear()
            first = asyncio.ensure_future(agent.post(asked() | {"messages": [*said, USER]}))
            await begun.wait()
            other = asked() | {"messages": [*said, {"role": "user", "content": "other"}]}
            status, answer = await agent.post(other)
            assert (status, answer["error"]["code"]) == (409, "conflict") and trajectory.num_turns == 1
            assert "raise rollout.conversation.maxRows" in answer["error"]["message"]
            gate.set()
            status, answer = await first
            assert status == 200
            said += [USER, answer["choices"][0]["message"]]
            assert (await agent.post(asked() | {"messages": [*said, USER]}))[0] == 200
        assert (len(trajectory.rows), trajectory.num_turns) == (1, 3)

    asyncio.run(play())


@pytest.mark.parametrize("token", [96, (1 << 31) - 1])
def test_tokens_that_the_model_has_not_are_refused_by_name_and_the_trajectory_goes_on(token):
    async def play():
        async def generate(request):
            return Sampled(np.array([65]), np.zeros(1, np.float32), np.zeros(1, np.int64), Ending.LENGTH)

        tokenizer = tokenizer_with(NO_TOOLS)
        unknown = token if token > len(tokenizer) else len(tokenizer)
        policy = Policy(Trajectory(tasks_of("hi")[0]), ChatRenderer(tokenizer), Bounds(3, 1, 9, 200), generate)
        player = BranchPlayer(policy.branches())
        with pytest.raises(
            RequestRefused, match=f"token {unknown} at place 1: the model has tokens from 0 to"
        ) as refused:
            await player.generate(TokenCall([3, unknown]))
        assert (refused.value.status, refused.value.param) == (400, "token_ids")
        assert (await player.generate(TokenCall([3, len(tokenizer) - 1], max_tokens=1))).token_ids == [65]

    asyncio.run(play())
