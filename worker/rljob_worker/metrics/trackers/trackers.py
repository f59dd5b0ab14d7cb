"""The trackers of one run, opened. Which there are, the api's catalogue says."""

import importlib.util
from collections.abc import Sequence
from functools import partial

from rljob_api.catalogue.trackers import TRACKERS
from rljob_worker.errors import InvalidJob
from rljob_worker.metrics.trackers.background import BackgroundTracker
from rljob_worker.metrics.trackers.tracker import TrackedRun, Tracker, TrackerOpener
from rljob_worker.users_code.function import load_function


def open_trackers(names: Sequence[str], run: TrackedRun) -> list[Tracker]:
    """TensorBoard always, then what the job asks for; InvalidJob for one that is not installed."""
    check_installed(names)
    # TensorBoard opens a file: last, so that one that is missing leaves nothing open
    wanted = [*dict.fromkeys(name for name in names if name != "TensorBoard"), "TensorBoard"]
    return [open_tracker(name, run) for name in wanted]


def check_installed(names: Sequence[str]) -> None:
    """InvalidJob, with the fix, for a tracker whose package is not in this environment."""
    for index, name in enumerate(names):
        needs = TRACKERS[name].needs
        if needs is not None and not _is_installed(needs.module):
            raise InvalidJob(
                f"spec.monitoring.trackers[{index}] asks for {name}, but the Python package {needs.module} is not "
                f"installed; {needs.remedy.removesuffix('.')}"
            )


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # hidden by None in its place
        return False


def open_tracker(name: str, run: TrackedRun) -> Tracker:
    declared = TRACKERS[name]
    # only now: TensorBoard takes half a second to import
    opener: TrackerOpener = load_function(f"tracker {name}", declared.opener)
    if not declared.in_background:
        return opener(run)
    return BackgroundTracker(name, partial(opener, run), failed_seconds=run.failed_seconds)
