"""What ends first: the work, or the patience."""

import asyncio

import pytest

from rljob_operator.process.leader import first_done
from rljob_operator.tests.virtual_time import now, run


async def wait_for(seconds: float, ended: list[str]) -> None:
    try:
        await asyncio.sleep(seconds)
    finally:
        ended.append(f"at {now():g}")


@pytest.mark.parametrize(("stop_at", "answer", "end"), [(10, True, "at 5"), (3, False, "at 3")])
def test_the_first_to_end_decides(stop_at: float, answer: bool, end: str) -> None:
    async def scene() -> None:
        ended: list[str] = []
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(stop_at, stop.set)
        assert await first_done(stop, wait_for(5, ended)) is answer
        await asyncio.sleep(0)
        assert ended == [end]

    run(scene())


def test_an_error_comes_out() -> None:
    async def fail() -> None:
        raise ValueError("no")

    async def scene() -> None:
        with pytest.raises(ValueError, match="no"):
            await first_done(asyncio.Event(), fail())

    run(scene())
