"""For all tests of the project."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# No example has a time limit: on a busy machine it says nothing of the code. `ci` is Hypothesis' own: the same examples
# in every run. Without it, each run draws others and remembers those that failed.
settings.register_profile("search", settings.get_profile("default"), deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "search"))


@pytest.fixture(autouse=True)
def environment_kept() -> Iterator[None]:
    """A variable that a test leaves behind changes the tests after it, and which those are, chance decides."""
    before = _variables()
    yield
    left = {name for name in before.keys() | _variables().keys() if before.get(name) != os.environ.get(name)}
    assert not left, f"the test left variables of the environment behind: {', '.join(sorted(left))}"


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
