"""Jobs as earlier versions wrote them: what has moved since, put where it is now.

For what a version before left behind, such as the job of a run. A job that a person writes has today's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_RECOMPUTES = "activationCheckpointing"
"""Was true or false, and is None, Full or Auto in training.memory."""


def by_todays_names(job: Any) -> Any:
    """A document that may be a job, with every field that has moved at its place of today."""
    spec = job.get("spec") if isinstance(job, Mapping) else None
    if not isinstance(spec, Mapping):
        return job
    training = spec.get("training")
    if not isinstance(training, Mapping) or _RECOMPUTES not in training:
        return job
    kept = {name: value for name, value in training.items() if name != _RECOMPUTES}
    memory = {_RECOMPUTES: "Full" if training[_RECOMPUTES] else "None", **(kept.get("memory") or {})}
    return {**job, "spec": {**spec, "training": {**kept, "memory": memory}}}
