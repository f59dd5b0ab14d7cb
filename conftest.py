"""For all tests of the project."""

import os
from collections.abc import Iterator

# One thread a test process, before anything loads torch: its default of one thread a core makes as many processes as
# cores fight for them.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
os.environ.update(ONE_THREAD)

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

pytest_plugins = ["testing.tiers"]

# No example has a time limit: on a busy machine it says nothing of the code. `ci` is Hypothesis' own: the same examples
# in every run. Without it, each run draws others and remembers those that failed.
settings.register_profile("search", settings.get_profile("default"), deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "search"))


@pytest.fixture(autouse=True)
def environment_kept() -> Iterator[None]:
    """A variable that a test left behind, or a library that it loaded, would change the tests after it; and which those
    are, chance decides."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys() - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]
    os.environ.update(before)
