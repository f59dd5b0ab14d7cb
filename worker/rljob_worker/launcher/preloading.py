"""What a fork server imports, once for all workers that it forks. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

PRELOAD = "rljob_worker.runtime.preload"
"""What every worker has imported by the end of its first step."""
LIBRARIES: Mapping[str, str] = {
    "Megatron": "rljob_worker.runtime.preload_megatron",
    "VLLM": "rljob_worker.runtime.preload_vllm",
}
"""What brings the libraries of engines that not every job has."""


def preload_for(devices: Collection[str], libraries: Collection[str]) -> tuple[str, ...]:
    """Modules for workers that compute on these devices, with engines of these libraries. Where one of them computes on
    a device such libraries are imported by those who use them: what they touch then, which forks could not share,
    nobody has looked at."""
    on_cpus = all(device == "cpu" for device in devices)
    more = (module for library, module in LIBRARIES.items() if library in libraries)
    return (PRELOAD, *more) if on_cpus else (PRELOAD,)
