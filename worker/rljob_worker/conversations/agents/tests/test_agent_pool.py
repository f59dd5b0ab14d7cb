"""Trajectories that are played by agents which live longer than one."""

from __future__ import annotations

import pytest

from rljob_api.v1alpha1 import ConversationSpec
from rljob_worker.conversations.agents.agent_pool import AgentPool
from rljob_worker.conversations.agents.policy_endpoint import ServedPolicy
from rljob_worker.conversations.agents.tests.test_programs import played
from rljob_worker.conversations.playing.tests.playing import text
from rljob_worker.errors import InvalidJob

AGENT = ["python", "-m", "rljob_worker.endpoint.tests.pool_agent"]


def play(how, prompts=("hi",), **fields):
    spec = ConversationSpec.model_validate({"agentPool": {"command": [*AGENT, how], "timeoutSeconds": 60, **fields}})
    return played(AgentPool(spec, ServedPolicy("actor"), "the-token"), prompts)


def test_one_agent_plays_one_trajectory_after_another():
    results = play("play", ("hi", "ho", "hu"))
    for item in results:
        prompt = item.task.messages[0]["content"]
        assert (item.failed, item.environment_reward, item.num_turns) == (None, 0.5, 2), item.message
        assert [text(row.response_ids) for row in item.rows] == ["a~][u:more][a:b~"]
        assert text(item.rows[0].prompt) == f"[u:{prompt}][a:" and dict(item.metrics)["program_calls"] == 2.0
    assert len({dict(item.metrics)["process"] for item in results}) == 1


def test_an_agent_that_ended_is_started_again_by_itself(caplog):
    results = play("once", ("hi", "ho"))
    assert [item.failed for item in results] == [None, None]
    assert len({dict(item.metrics)["process"] for item in results}) == 2
    assert "agent 0 ended: exit code 1: that is enough; it starts again in 1 s" in caplog.text


@pytest.mark.parametrize(
    ("how", "fields", "cause", "message"),
    [
        ("error", {}, "agent_error", "the tests did not run"),
        ("lost", {"timeoutSeconds": 0.2}, "agent_timedout", "did not say its end within 0.2 s"),
        ("absent", {"claimSeconds": 0.2}, "agent_absent", r"took it within 0.2 s \(.*agentPool\.claimSeconds\)"),
    ],
)
def test_a_trajectory_that_no_agent_ends_well_is_failed_by_name(how, fields, cause, message):
    (one,) = play(how, **fields)
    assert one.failed == cause
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(one.message)


def test_a_command_that_there_is_not_ends_the_job():
    spec = ConversationSpec.model_validate({"agentPool": {"command": ["no-such-agent"]}})
    with pytest.raises(InvalidJob, match=r"agentPool\.command: no-such-agent: .*No such file"):
        played(AgentPool(spec, ServedPolicy("actor"), "the-token"))
