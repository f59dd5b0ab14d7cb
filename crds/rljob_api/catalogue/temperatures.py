"""Sampling temperatures of the libraries that generate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Temperatures:
    """0, which takes the most likely token, and all between two bounds."""

    lowest: float
    highest: float
    below: str
    """What would happen below the lowest."""

    def have(self, temperature: float) -> bool:
        return temperature == 0 or self.lowest <= temperature <= self.highest


TEMPERATURES: Mapping[str, Temperatures] = {
    "Transformers": Temperatures(1e-6, 1e6, "logits divided by less may be no finite Float32"),
    "VLLM": Temperatures(0.01, 2.0, "it would sample at 0.01, and log-probabilities would be of that temperature"),
}
"""By `rollout.engine`. VLLM itself refuses what is above its highest, and raises what is below its lowest to it."""
