"""Processes of tests. Python has one fork server a process, and the first who starts it says what it has imported: so
all start it here, and none of them imports torch again."""

import multiprocessing
from multiprocessing.context import ForkServerContext

PRELOAD = "rljob_worker.tests.preload_ranks"


def forking(*more: str) -> ForkServerContext:
    """more: what else is imported once, where nobody has started the server yet."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOAD, *more])
    return context
