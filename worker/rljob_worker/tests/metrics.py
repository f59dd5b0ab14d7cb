"""What two runs of the same job must agree on."""

from __future__ import annotations


def without_times(metrics: list[dict[str, float]], *others: str) -> list[dict[str, float]]:
    """Metrics of every step but those that measure the machine. Reports to the lead carry times as text, so that their
    sizes differ; and an attempt begins with an announcement of its own. `others`: prefixes of more to leave out."""
    machine = ("time/", "throughput/", "data/bytes_total", *others)
    words = ("metrics", "verdict", "weights/", "_seconds")
    return [
        {
            name: value
            for name, value in step.items()
            if not name.startswith(machine) and not any(w in name for w in words)
        }
        for step in metrics
    ]
