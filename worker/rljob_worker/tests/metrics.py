"""What two runs of the same job must agree on."""

from __future__ import annotations


def without_times(metrics: list[dict[str, float]], *others: str) -> list[dict[str, float]]:
    """Metrics of every step but those that measure the machine. `others`: prefixes of more to leave out."""
    machine = ("time/", "throughput/", "data/bytes_total", *others)
    words = ("weights/", "_seconds")
    return [
        {
            name: value
            for name, value in step.items()
            if not name.startswith(machine) and not any(w in name for w in words)
        }
        for step in metrics
    ]
