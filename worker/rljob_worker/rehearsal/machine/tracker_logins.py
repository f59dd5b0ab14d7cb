"""Whether this machine has what trackers ask for: an account of W&B, a server of MLflow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rljob_api.catalogue.trackers import TRACKERS
from rljob_worker.users_code.function import load_function


def unreachable_trackers(trackers: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each of which nothing here says how to reach it. environment: of a worker.

    It may be reached all the same, say by settings in a file of its own, so that this keeps no job from running.
    """
    for name in dict.fromkeys(trackers):
        function = TRACKERS[name].unreachable
        if function is not None and (sentence := load_function(f"tracker {name}", function)(environment)):
            yield sentence
