"""Processes of tests. Python has one fork server a process, and the first who starts it says what it has imported: so
all start it here, and none of them imports torch again."""

import multiprocessing
from multiprocessing.context import ForkServerContext

PRELOAD = (
    "rljob_worker.engines.fsdp",
    "rljob_worker.engines.megatron.layers",
    "rljob_worker.engines.tests.builders",
    "rljob_worker.runtime.setup.world",
    "transformers.models.qwen3.modeling_qwen3",
)
"""Those that an environment lacks are left out."""


def forking(*more: str) -> ForkServerContext:
    """more: what else is imported once, where nobody has started the server yet."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD, *more])
    return context
