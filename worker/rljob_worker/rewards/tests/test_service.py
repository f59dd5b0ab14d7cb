"""Calls of services, over real connections: what they carry, how many, and what goes wrong with them."""

import asyncio
import json
import threading

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.rewards.access import ServiceAccess, access_of
from rljob_worker.rewards.running.runner import RewardRunner
from rljob_worker.rewards.running.tests.test_runner import HERE, Spec, rows
from rljob_worker.rewards.service import Service, ServiceError
from rljob_worker.rewards.tests.model_server import lengths, serving

SERVED = "rljob_worker.rewards:served"


def access(url, *, token="", batch_rows=16, concurrency=8):
    return ServiceAccess(name="judge", url=url, token=token, batch_rows=batch_rows, concurrency=concurrency)


def with_service(given, use):
    """What `use` makes of a service of these limits."""

    async def opened():
        service = Service(given)
        try:
            return await use(service)
        finally:
            await service.close()

    return asyncio.run(opened())


def ask(given, responses):
    """What a service of these limits says of rows that are asked for at the same time, and what that took."""

    async def all_of_them(service):
        rewards = [asyncio.ensure_future(service.reward({"response": response})) for response in responses]
        await asyncio.gather(*rewards, return_exceptions=True)
        return [reward.result() for reward in rewards], service.take_use()

    return with_service(given, all_of_them)


def score(data, **fields):
    spec = Spec(SERVED, name="good", **fields)
    with RewardRunner([spec], 1, [HERE]) as runner:
        return runner.score(data)


def test_rows_that_are_asked_for_together_share_calls_and_keep_their_order():
    with serving(lengths) as server:
        answers, use = ask(access(server.url), ["x" * n for n in range(40)])
    assert answers == list(range(40))
    # 40 rows, at most 16 in a call
    assert sorted(len(body["rows"]) for body in server.asked) == [8, 16, 16]
    assert (use.requests, use.errors) == (3, 0) and use.seconds > 0


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_more_calls_are_under_way_than_the_job_says(concurrency):
    together = threading.Barrier(concurrency)

    def answer(body):
        together.wait(TEST_TIMEOUT_SECONDS)  # as many as may are there at once
        return lengths(body)

    with serving(answer) as server:
        answers, use = ask(access(server.url, batch_rows=1, concurrency=concurrency), ["x"] * 2 * 3)
    assert answers == [1] * 6 and server.most_at_once == concurrency
    assert use.requests == 6


def test_a_call_carries_the_token_and_whole_rows():
    with serving(lengths) as server:
        ask(access(server.url, token="s3cret"), ["abc"])
    assert server.tokens == ["Bearer s3cret"] and server.asked == [{"rows": [{"response": "abc"}]}]


def test_a_function_may_ask_anything_else():
    async def embed(service):
        return await service.post({"input": "x"}, "/v1/embeddings")

    with serving(lambda body: (200, json.dumps({"said": body["input"]}))) as server:
        assert with_service(access(server.url), embed) == {"said": "x"}
    assert server.paths == ["/judge/v1/embeddings"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((200, '{"rewards": [1.0]}'), "answers 1 rewards to 2 rows"),
        ((200, '{"rewards": [1, 2, 3]}'), "answers 3 rewards to 2 rows"),
        ((200, "[1.0, 2.0]"), 'answers [1.0, 2.0], not {"rewards": [...]}'),
        ((200, '{"rewards": 1.0}'), 'answers {"rewards": 1.0}, not {"rewards": [...]}'),
        ((200, "oops"), "answers no JSON: oops"),
        ((500, "Internal\n  error " + "x" * 300), "answers 500: Internal error xxx"),
        ((401, ""), "refuses the token of this job"),
        ((302, ""), "answers 302"),
        ((0, ""), "cannot be reached: ServerDisconnectedError"),
    ],
)
def test_what_is_no_answer_is_named(answer, words):
    with serving(lambda body: answer) as server, pytest.raises(ServiceError) as caught:
        ask(access(server.url, token="s3cret"), ["a", "b"])
    assert f"service judge at {server.url} " in str(caught.value) and words in str(caught.value)
    assert len(str(caught.value)) < 400
    assert set(server.paths) == {"/judge"}  # a redirection would take the token along


def test_a_call_nobody_waits_for_any_more_makes_room_for_another():
    held = threading.Event()

    def answer(body):
        if body["rows"][0]["response"] == "slow":
            held.wait(TEST_TIMEOUT_SECONDS)
        return lengths(body)

    async def two_rows(service):
        slow = asyncio.ensure_future(service.reward({"response": "slow"}))
        while not server.asked:
            await asyncio.sleep(0.01)
        quick = asyncio.ensure_future(service.reward({"response": "ab"}))
        slow.cancel()
        return await quick

    with serving(answer) as server:
        assert with_service(access(server.url, batch_rows=1, concurrency=1), two_rows) == 2
        held.set()


def test_a_service_rewards_rows_and_its_calls_are_measured():
    def answer(body):
        return 200, json.dumps(
            {"rewards": [{"reward": len(row["response"]), "truncated": 0.5} for row in body["rows"]]}
        )

    with serving(answer) as server:
        result = score(rows("a", "bbb", "cc"), url=server.url)
    assert result.total.tolist() == [1.0, 3.0, 2.0]
    outcome = {name: scalar.value for name, scalar in result.metrics.items()}
    assert outcome["reward/good"] == 2.0 and outcome["reward/good/truncated"] == 0.5
    assert outcome["service/good/requests_total"] == len(server.asked) and outcome["service/good/errors_total"] == 0
    assert outcome["service/good/seconds"] > 0 and outcome["service/good/queue_seconds"] >= 0
    assert server.asked[0]["rows"][0]["prompt"] == "p"


def test_rows_that_wait_for_a_call_do_not_run_out_of_time():
    """Eight calls one after the other take longer than one may."""

    def answer(body):
        held.wait(0.25)
        return lengths(body)

    held = threading.Event()
    with serving(answer) as server:
        data = rows(*["x"] * 8)
        result = score(data, url=server.url, timeout_seconds=1.5, batch_rows=1, concurrency=1)
    assert result.total.tolist() == [1.0] * 8
    assert result.metrics["service/good/queue_seconds"].value > 0.2


def test_connections_that_break_cost_nothing_while_retries_remain():
    broken = iter([True, True])

    def answer(body):
        return (0, "") if next(broken, False) else lengths(body)

    with serving(answer) as server:
        result = score(rows("a", "bb"), url=server.url, on_error="Retry", retries=5)
    assert result.total.tolist() == [1.0, 2.0] and not result.missed
    assert result.metrics["service/good/errors_total"].value > 0


def test_a_service_that_is_not_there_ends_the_job_by_name_when_retries_are_used_up():
    with serving(lengths) as server:
        pass
    with pytest.raises(BadData, match="cannot be reached.*it was called 3 times"):
        score(rows("a"), url=server.url, on_error="Retry", retries=2)


def test_a_late_answer_is_the_services_failure_not_the_rows():
    held = threading.Event()
    first = iter([True])

    def answer(body):
        if next(first, False):
            held.wait(TEST_TIMEOUT_SECONDS)
        return lengths(body)

    with serving(answer) as server:
        result = score(rows("abc"), url=server.url, timeout_seconds=0.5, on_error="Retry")
        assert result.total.tolist() == [3.0] and not result.missed
        held.set()
    assert result.metrics["reward/good/retries_total"].value >= 1


def test_a_late_answer_ends_the_job_where_it_says_so():
    held = threading.Event()

    def answer(body):
        held.wait(TEST_TIMEOUT_SECONDS)
        return lengths(body)

    with serving(answer) as server:
        with pytest.raises(BadData, match=r"row 101 .*service good did not answer within 0.3 s"):
            score(rows("abc"), url=server.url, timeout_seconds=0.3)
        held.set()  # the server's threads end before it does


def test_an_answer_that_is_no_number_is_named_with_its_row():
    nan = serving(lambda body: (200, '{"rewards": [NaN]}'))
    with nan as server, pytest.raises(BadData, match="row 101 .*returned nan"):
        score(rows("abc"), url=server.url)


def test_a_function_of_the_users_own_gets_the_service_beside_its_options():
    spec = {"run": "user_rewards:asks_twice", "name": "good", "options": {"scale": 10.0}}
    with serving(lengths) as server, RewardRunner([Spec(**spec, url=server.url)], 1, [HERE]) as runner:
        assert runner.score(rows("ab", "c")).total.tolist() == [40.0, 20.0]


def test_a_plain_function_cannot_wait_for_a_service():
    words = "asks a service and would wait for each row; declare it with `async def`"
    plain = Spec("user_rewards:plain_with_service", url="http://127.0.0.1:1")
    with RewardRunner([plain], 1, [HERE]) as runner, pytest.raises(InvalidJob, match=words):
        runner.check()


def test_a_token_is_where_the_job_says(tmp_path):
    file = tmp_path / "token"
    file.write_text("from a file\n")
    spec = Spec(SERVED, name="good", url="https://a.example", token_variable="T", batch_rows=3)
    result = access_of(spec, {"T": "from a variable"})
    assert result == ServiceAccess(
        name="good", url="https://a.example", token="from a variable", batch_rows=3, concurrency=8
    )
    spec = Spec(SERVED, url="https://a.example", token_file=str(file))
    assert access_of(spec, {})["token"] == "from a file"
    assert access_of(Spec(SERVED, url="https://a.example"), {})["token"] == ""
    assert access_of(Spec(SERVED), {}) is None


def test_a_service_of_the_job_is_where_the_pod_says(tmp_path):
    file = tmp_path / "token"
    file.write_text("ours")
    addresses = '{"other": "http://127.0.0.1:8/other", "judge": "http://127.0.0.1:7/judge"}'
    environment = {"RLJOB_SERVICES": addresses, "RLJOB_SERVICES_TOKEN_FILE": str(file)}
    result = access_of(Spec(SERVED, name="good", service="judge"), environment)
    assert (result["name"], result["url"], result["token"]) == ("judge", "http://127.0.0.1:7/judge", "ours")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"token_variable": "T"}, "tokenVariable T is not set"),
        ({"token_file": "/nowhere/token"}, "tokenFile /nowhere/token cannot be read: No such file"),
        ({"token_file": "/dev/null"}, "tokenFile /dev/null is empty"),
    ],
)
def test_a_token_that_is_not_there_is_named(fields, words):
    with pytest.raises(InvalidJob, match=words):
        access_of(Spec(SERVED, url="https://a.example", **fields), {"T": " "})
