"""For all tests of the project."""

import os

from hypothesis import settings

# No example has a time limit: on a busy machine it says nothing of the code. `ci` is Hypothesis' own: the same examples
# in every run. Without it, each run draws others and remembers those that failed.
settings.register_profile("search", settings.get_profile("default"), deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "search"))
