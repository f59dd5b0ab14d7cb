"""For tests of confinement."""

import os

import pytest

from rljob_worker.sandbox.landlock import SCOPED_ABI, landlock_abi
from rljob_worker.sandbox.seccomp import has_seccomp


@pytest.fixture
def confining_kernel():
    """Linux with Landlock of ABI 6 or later, and seccomp: tests that need it are skipped elsewhere, and fail in CI."""
    if landlock_abi() < SCOPED_ABI or not has_seccomp():
        problem = "needs a kernel with Landlock of ABI 6 and seccomp"
        pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)
