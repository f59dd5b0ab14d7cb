"""For all tests of the worker."""

import os
import signal

import pytest

# a shell starts background jobs with SIGINT ignored, and children inherit that: tests that press Ctrl-C would hang
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What needs an accelerator is run where there is one; elsewhere it is deselected, and counted nowhere."""
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing and not _has_accelerator():
        items[:] = [item for item in items if item not in needing]
        config.hook.pytest_deselected(items=needing)


@pytest.fixture
def confining_kernel() -> None:
    """Linux with Landlock of ABI 6 or later, and seccomp: tests that need it are skipped elsewhere, and fail in CI."""
    from rljob_worker.sandbox.confinement.landlock import SCOPED_ABI, landlock_abi
    from rljob_worker.sandbox.confinement.seccomp import has_seccomp

    if landlock_abi() < SCOPED_ABI or not has_seccomp():
        problem = "needs a kernel with Landlock of ABI 6 and seccomp"
        pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)


def _has_accelerator() -> bool:
    import torch

    return bool(torch.cuda.is_available())
