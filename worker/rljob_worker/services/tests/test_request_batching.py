"""Requests that wait together, and those that do not."""

import asyncio

import pytest

from rljob_worker.services.request_batching import MOST_REQUESTS, RequestBatcher


class Model:
    """Doubles numbers, each time that it is let go; a 13 it cannot read."""

    def __init__(self):
        self.asked, self.go = [], asyncio.Semaphore(0)

    async def __call__(self, rows):
        self.asked.append(list(rows))
        await self.go.acquire()
        if 13 in rows:
            raise ValueError("13 is not a number")
        return [2 * row for row in rows]


async def begun(*requests):
    """The requests as tasks that have got as far as they can: each waits for the model, or for another request."""
    tasks = [asyncio.ensure_future(request) for request in requests]
    for _ in range(50):
        await asyncio.sleep(0)
    return tasks


async def answers(*tasks):
    """What they return. One that waits for what does not come fails here, and does not hang."""
    await begun()
    assert all(task.done() for task in tasks), "still waits"
    return [task.exception() or task.result() for task in tasks]


def test_requests_that_wait_are_asked_about_together():
    async def play():
        model = Model()
        joined = RequestBatcher(model)
        first = await begun(joined.of([1, 2]))
        later = await begun(joined.of([3]), joined.of([4, 5]))
        assert model.asked == [[1, 2]]  # nobody waits for more to come
        model.go.release()
        model.go.release()
        assert await answers(*first, *later) == [[2, 4], [6], [8, 10]]
        assert model.asked == [[1, 2], [3, 4, 5]]

    asyncio.run(play())


def test_no_more_of_them_than_are_said():
    async def play():
        model = Model()
        joined = RequestBatcher(model)
        tasks = await begun(*(joined.of([n]) for n in range(MOST_REQUESTS + 3)))
        for _ in range(3):
            model.go.release()
        assert await answers(*tasks) == [[2 * n] for n in range(MOST_REQUESTS + 3)]
        # the first begins before the others are there
        assert [len(rows) for rows in model.asked] == [1, MOST_REQUESTS, 2]

    asyncio.run(play())


def test_what_is_wrong_with_one_is_told_to_those_that_were_asked_about_with_it():
    async def play():
        model = Model()
        joined = RequestBatcher(model)
        tasks = await begun(joined.of([1]), joined.of([2]), joined.of([13]))
        model.go.release()
        model.go.release()
        result = await answers(*tasks)
        assert result[0] == [2] and [str(item) for item in result[1:]] == ["13 is not a number"] * 2
        (after,) = await begun(joined.of([3]))
        model.go.release()
        assert await answers(after) == [[6]]

    asyncio.run(play())


def test_a_request_that_is_given_up_is_not_asked_about():
    async def play():
        model = Model()
        joined = RequestBatcher(model)
        first, given_up, last = await begun(joined.of([1]), joined.of([2]), joined.of([3]))
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        model.go.release()
        model.go.release()
        assert await answers(first, last) == [[2], [6]]
        assert model.asked == [[1], [3]]

    asyncio.run(play())


def test_one_that_is_given_up_while_it_asks_for_others_leaves_them_to_the_next():
    async def play():
        model = Model()
        joined = RequestBatcher(model)
        (first,) = await begun(joined.of([1]))
        asks, waits = await begun(joined.of([2]), joined.of([3]))
        model.go.release()
        assert await answers(first) == [[2]]
        assert model.asked == [[1], [2, 3]]
        asks.cancel()
        await begun()
        model.go.release()
        assert await answers(waits) == [[6]] and asks.cancelled()
        assert model.asked == [[1], [2, 3], [3]]

    asyncio.run(play())


def test_one_that_is_given_up_while_others_ask_for_it_costs_them_nothing():
    async def play():
        model = Model()
        joined = RequestBatcher(model)
        (first,) = await begun(joined.of([1]))
        asks, waits = await begun(joined.of([2]), joined.of([3]))
        model.go.release()
        await answers(first)
        waits.cancel()
        await begun()
        model.go.release()
        assert await answers(asks) == [[4]] and waits.cancelled()

    asyncio.run(play())
