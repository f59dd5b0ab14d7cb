"""For all tests of the project."""

import os

# One thread a test process, before anything loads torch: its default of one thread a core makes as many processes as
# cores fight for them.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
os.environ.update(ONE_THREAD)

from hypothesis import settings  # noqa: E402

pytest_plugins = ["testing.bytecode", "testing.garbage", "testing.tiers", "testing.leaks", "testing.order"]

# No example has a time limit: on a busy machine it says nothing of the code. `ci` draws the same examples in every run;
# `search`, without it, others each time, and remembers those that failed: few in a run are many in time. `long` draws
# more, for whoever has changed what a property is about.
for profile, like, max_examples in (("search", "default", 40), ("ci", "ci", 40), ("long", "default", 1000)):
    settings.register_profile(profile, settings.get_profile(like), deadline=None, max_examples=max_examples)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "search"))
