"""What a fork server imports, once for all workers that it forks. Pure."""

from __future__ import annotations

from collections.abc import Collection

from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES

PRELOAD = "rljob_worker.runtime.preload"
"""What every worker has imported by the end of its first step."""
MEGATRON = "rljob_worker.runtime.preload_megatron"
TRAINING = {"FSDP": None, "Megatron": MEGATRON}


def preload_for(devices: Collection[str], libraries: Collection[str]) -> tuple[str, ...]:
    """Modules for workers that compute on these devices, with engines of these libraries. Where one of them computes on
    a device such libraries are imported by those who use them: what they touch then, which forks could not share,
    nobody has looked at."""
    on_cpus = all(device == "cpu" for device in devices)
    more = (TRAINING[name] if name in TRAINING else ROLLOUT_ENGINES[name].preload for name in sorted(libraries))
    return (PRELOAD, *filter(None, more)) if on_cpus else (PRELOAD,)
