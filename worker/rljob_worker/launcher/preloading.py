"""What a fork server imports, once for all workers that it forks. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rljob_api.planning.plan import Plan

PRELOAD = "rljob_worker.runtime.preload"
"""What every worker has imported by the end of its first step."""
LIBRARIES: Mapping[str, str] = {
    "Megatron": "rljob_worker.runtime.preload_megatron",
    "VLLM": "rljob_worker.runtime.preload_vllm",
}
"""What brings the libraries of engines that not every job has."""


def preload_for(plan: Plan, groups: Collection[str]) -> tuple[str, ...]:
    """Modules for workers of these groups. Where one of them computes on a device such libraries are imported by those
    who use them: what they touch then, which forks could not share, nobody has looked at."""
    used = {engine.library for engine in plan.engines if engine.group in groups}
    on_cpus = all(plan.group(name).device == "cpu" for name in groups)
    more = (module for library, module in LIBRARIES.items() if library in used)
    return (PRELOAD, *more) if on_cpus else (PRELOAD,)
