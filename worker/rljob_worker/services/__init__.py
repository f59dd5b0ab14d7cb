"""Models served next to the job: shipped applications of Ray Serve, and the process that serves a job's.

A job names one as `rljob_worker.services:reward_model`. Names are imported when first used: what a model needs is
imported where it is served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rljob_worker.services.applications import (
        embedding,
        judge,
        process_reward_model,
        reward_model,
        video_encoder,
    )

__all__ = ["embedding", "judge", "process_reward_model", "reward_model", "video_encoder"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    from rljob_worker.services import applications

    return getattr(applications, name)
