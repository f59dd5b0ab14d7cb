"""Calls in real processes, as tests make them."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.sandbox.calls.calls import CallLimits, Calls, Target

HERE = Path(__file__).parent
LIMITS = CallLimits(seconds=TEST_TIMEOUT_SECONDS, memory_bytes=1 << 30, processes=64, output_bytes=1 << 16)


def limits(**values):
    fields = {name: getattr(LIMITS, name) for name in CallLimits.__slots__}
    return CallLimits(**{**fields, **values})


def target(name, *, options=None, isolated=False, stateful=False, environment=(), **changed):
    run = name if ":" in name else f"user_tools:{name}"
    return Target(run, options or {}, limits(**changed), isolated, environment, stateful=stateful)


@asynccontextmanager
async def calling(*targets, processes=1, confinement="Off", network=(), pythonpath=(HERE,)):
    """Targets by the names of what they run."""
    named = {item.run.partition(":")[2]: item for item in targets}
    calls = Calls(named, processes=processes, confinement=confinement, network=network, pythonpath=pythonpath)
    try:
        yield calls
    finally:
        calls.close()


async def value(calls, session, name, method=None, **arguments):
    answer = await calls.call(session, name, method, arguments)
    assert answer.error is None, answer.error
    return answer.value


async def failure(calls, session, name, method=None, **arguments):
    answer = await calls.call(session, name, method, arguments)
    assert answer.error is not None, answer.value
    return answer.error.cause, answer.error.message


def once(target, **arguments):
    """The answer to the only call of a target."""

    async def run():
        async with calling(target) as calls:
            return await calls.call("s", target.run.partition(":")[2], None, arguments)

    return asyncio.run(run())
