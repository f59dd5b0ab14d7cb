"""What an agent is answered where its messages cannot be shown to the model."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from rljob_worker.conversations.agents.branch_player import BranchPlayer
from rljob_worker.conversations.playing.tests.playing import tasks_of
from rljob_worker.conversations.policy import Bounds, Policy
from rljob_worker.conversations.rendering.chat_renderer import ChatRenderer
from rljob_worker.conversations.rendering.tests.chat_models import NO_TOOLS, tokenizer_with
from rljob_worker.conversations.trajectory import Sampled, Trajectory
from rljob_worker.endpoint.calls import ChatCall, RequestRefused
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
