"""Whether this machine has what trackers ask for: an account of W&B, a server of MLflow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from rljob_api.catalogue.trackers import TRACKERS
from rljob_worker.errors import InvalidJob
from rljob_worker.rehearsal.finding import Finding, finding_of
from rljob_worker.users_code.function import load_function


def unreachable_trackers(trackers: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each of which nothing here says how to reach it. environment: of a worker.

    It may be reached all the same, say by settings in a file of its own, so that this keeps no job from running.
    """
    for name in dict.fromkeys(trackers):
        with contextlib.suppress(InvalidJob):  # `tracker_findings` has it
            if sentence := _missing(name, environment):
                yield sentence


def tracker_findings(trackers: Sequence[str], environment: Mapping[str, str]) -> Iterator[Finding]:
    """Trackers that can be reached by no machine with this environment."""
    for i, name in enumerate(trackers):
        try:
            _missing(name, environment)
        except InvalidJob as error:
            yield finding_of(f"spec.monitoring.trackers[{i}]", error)


def _missing(name: str, environment: Mapping[str, str]) -> str | None:
    tracker = TRACKERS.find(name)  # a name that nobody declares is a mistake of the job, which others report
    if tracker is None or tracker.unreachable is None:
        return None
    sentence: str | None = load_function(f"tracker {name}", tracker.unreachable)(environment)
    return sentence
