"""The library itself: imported once, in surroundings that it needs."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Callable

from rljob_worker.engines.rollout.protocol import RolloutEngine
from rljob_worker.errors import InvalidJob

Start = Callable[..., RolloutEngine]

OLDEST = (0, 32)
"""The first version of vLLM with all that is called here, parts of which are not its public interface."""

_REQUIRED = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine is driven from this process, step by step
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # the other one, whose sampler `drawing` replaces, is that of CPUs, too
}
_PREFERRED = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # threads on fixed cores starve the other workers of a machine
}


def load_start(*, batch_invariant: bool = False) -> Start:
    """`starting.start`, for which vLLM is imported. Of the variables that it reads, those it may do without are left as
    the job has them. batch_invariant: as in the settings; kernels of devices ask when they are imported. Raises
    InvalidJob where it is not installed, or too old."""
    os.environ.update(_REQUIRED | ({"VLLM_BATCH_INVARIANT": "1"} if batch_invariant else {}))
    for name, value in _PREFERRED.items():
        os.environ.setdefault(name, value)
    logging.getLogger("vllm").setLevel(os.environ["VLLM_LOGGING_LEVEL"])  # already while it is imported
    logging.getLogger("vllm.logging_utils.dump_input").setLevel(logging.CRITICAL)  # every request, when it breaks
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its own parts, at each other
            import vllm

            require_version(vllm.__version__)
            from rljob_worker.engines.rollout.vllm.starting import start
    except ModuleNotFoundError as error:
        raise InvalidJob(
            f"rollout.engine VLLM: this environment has no {error.name}; install vLLM as docs/engines.md says (`make "
            "vllm` makes an environment for the CPU) and run rljob from there, or write rollout.engine: Transformers"
        ) from error
    return start


def require_version(version: str) -> None:
    """Raises InvalidJob for one that is older than `OLDEST`."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or tuple(map(int, numbers.groups())) < OLDEST:
        raise InvalidJob(
            f"rollout.engine VLLM: this environment has vLLM {version}, and {'.'.join(map(str, OLDEST))} is the oldest "
            "that will do; install a newer one as docs/engines.md says, or write rollout.engine: Transformers"
        )
