"""Variables that workers and data buffers start with, on a cluster as on one machine, unless a job says otherwise."""

from collections.abc import Mapping

MALLOC_KEEPS_MEMORY: Mapping[str, str] = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
}
"""glibc gives large blocks back at every free, and the next forward pass or record batch faults them in again."""

THREADS_SLEEP: Mapping[str, str] = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that spin while they wait take their core from the data buffer and from rewards."""

WORKER_DEFAULTS: Mapping[str, str] = {**THREADS_SLEEP, **MALLOC_KEEPS_MEMORY}
