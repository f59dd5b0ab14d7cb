"""`Rules`: what an administrator decided for all jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_operator.manifests.ceilings import Ceilings
from rljob_operator.manifests.settings import PodSettings


@dataclass(frozen=True)
class Rules:
    """Rules for pods, and how often jobs and their children are checked."""

    profiles: Mapping[str, AcceleratorProfile]
    pods: PodSettings = PodSettings()
    ceilings: Ceilings = Ceilings()
    look_again_seconds: float = 30.0
    """How often a job that runs is looked at although nothing changes."""
    quiet_seconds: float = 1.0
    """How long after a look the next one waits while pods come up: their changes are many, and one look sees all."""
    heal_interval_seconds: float = 30.0
    """How often children other than pods are compared with what they should be, and what was refused is tried again."""
