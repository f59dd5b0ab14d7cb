"""rljob from a laptop: jobs on a cluster, as the command line has them.

import rljob

client = rljob.Client(context="research")
job = client.submit("job.yaml", code="rewards/")
for job in client.follow(job.name):
    print(job.phase, job.step, job.reward)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rljob.client import Client as Client
    from rljob.job import Job as Job

_HOMES = {"Client": "client", "Job": "job"}
__all__ = ["Client", "Job"]


def __getattr__(name: str) -> Any:
    """A name's home is imported when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
