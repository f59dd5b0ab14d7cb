"""Where a copy of a shipped model lies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelPlacement:
    """Ray gives a copy its accelerators, which are the first ones that its process sees."""

    device: str = "cpu"
    """The torch device type."""
    accelerators: int = 0
    """0: it is on CPUs."""
    profile: str = "cpu"
    """What the job calls them."""


ON_CPU = ModelPlacement()
