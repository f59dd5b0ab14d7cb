"""How agents take trajectories from the server, and say how they ended."""

from __future__ import annotations

import asyncio

import pytest

from rljob_worker.endpoint.server import RESULT, TASK
from rljob_worker.endpoint.task_offers import TaskOffer, TaskOffers, TaskResult
from rljob_worker.endpoint.tests.serving import serve, until

NOW = {"wait_seconds": 0}


def test_an_agent_takes_what_waited_longest_and_says_how_it_ended():
    offers = TaskOffers("the token")

    async def use(agent):
        agent.registration.result = asyncio.get_running_loop().create_future()
        key, agent.key = agent.key, "the token"
        assert (await agent.post(NOW, TASK))[0] == 204
        waiting = asyncio.ensure_future(agent.post(b"", TASK))
        offer = TaskOffer(key, {"messages": [], "seed": 3})
        with offers.offered(offer), offers.offered(TaskOffer("other", {})):
            status, task = await waiting
            url = agent.endpoint.base_url
            assert (status, task) == (
                200,
                {"base_url": url, "api_key": key, "model": "actor", "messages": [], "seed": 3},
            )
            assert offer.taken.is_set() and (await agent.post(NOW, TASK))[1]["api_key"] == "other"
            assert (await agent.post(NOW, TASK))[0] == 204
        agent.key = key
        assert (await agent.post({"reward": True, "metrics": {"files": 2}}, RESULT))[0] == 200
        assert (await agent.post({"reward": 7}, RESULT))[0] == 200
        assert agent.registration.result.result() == TaskResult(1.0, {"files": 2.0})

    serve(use, offers=offers)


def test_what_an_agent_that_went_away_had_asked_for_is_anothers():
    offers = TaskOffers("the token")

    async def use(agent):
        agent.key = "the token"
        gone = asyncio.ensure_future(agent.post({}, TASK))
        await until(lambda: agent.endpoint.num_connections)
        gone.cancel()
        await until(lambda: not agent.endpoint.num_connections)
        with offers.offered(TaskOffer("key", {})):
            assert (await agent.post({"wait_seconds": 30}, TASK))[1]["api_key"] == "key"

    serve(use, offers=offers)


def test_other_tokens_and_results_that_are_none_are_refused_by_name():
    offers = TaskOffers("the token")

    async def use(agent):
        key = agent.key
        assert (await agent.post({"reward": 1}, RESULT))[0] == 409  # a program's
        agent.registration.result = asyncio.get_running_loop().create_future()
        for stranger in (key, "the toke", "the token2", "ключ"):
            agent.key = stranger
            status, answer = await agent.post(NOW, TASK)
            assert status in (400, 401)
        agent.key = "the token"
        assert (await agent.post({"reward": 1}, RESULT))[0] == 401
        for wait in (-1, "long", float("1e999"), None):
            status, answer = await agent.post({"wait_seconds": wait}, TASK)
            assert status == 400 and ("wait_seconds" in answer["error"]["message"] or "JSON" in str(answer))
        agent.key = key
        for body, param in (
            ({"reward": "high"}, "reward"),
            ({"reward": 10**400}, "reward"),
            ({"metrics": [1]}, "metrics"),
            ({"metrics": {"a": "b"}}, "metrics"),
            ({"error": 7}, "error"),
        ):
            status, answer = await agent.post(body, RESULT)
            assert (status, answer["error"]["param"]) == (400, param)
        assert not agent.registration.result.done()

    serve(use, offers=offers)


def test_offers_without_a_token_are_a_mistake_of_ours():
    with pytest.raises(AssertionError):
        TaskOffers("")
