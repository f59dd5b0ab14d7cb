"""For all tests of the project."""

import os

# One thread a test process, before anything loads torch: its default of one thread a core makes as many processes as
# cores fight for them.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
os.environ.update(ONE_THREAD)

from hypothesis import settings  # noqa: E402

pytest_plugins = ["testing.garbage", "testing.tiers", "testing.leaks", "testing.order"]

# No example has a time limit: on a busy machine it says nothing of the code. `ci` is Hypothesis' own: the same examples
# in every run. Without it, each run draws others and remembers those that failed.
settings.register_profile("search", settings.get_profile("default"), deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "search"))
