"""What a job leaves to its accelerators."""

from __future__ import annotations

from collections.abc import Mapping

from rljob_api.catalogue import profiles as built_in_profiles
from rljob_api.catalogue.profiles import AcceleratorProfile
from rljob_api.pipeline.resolution import Resolution, place
from rljob_api.v1alpha1 import RLJobSpec


def settled(spec: RLJobSpec, profiles: Mapping[str, AcceleratorProfile] = built_in_profiles.DEFAULT) -> RLJobSpec:
    """The spec with `training.precision` written out; a model has one number format wherever it is computed."""
    if spec.training.precision != "Auto":
        return spec
    precision = "Float32" if "cpu" in _devices_of_models(spec, profiles) else "BFloat16"
    training = spec.training.model_copy(update={"precision": precision})
    return spec.model_copy(update={"training": training})


def _devices_of_models(spec: RLJobSpec, profiles: Mapping[str, AcceleratorProfile]) -> set[str]:
    """Device types of the groups in which a stage computes with a model."""
    resolution = Resolution(spec)
    placed = place(resolution)
    homes = {placed[name] for name, stage in resolution.stages.items() if stage.models}
    return {profiles[group.accelerator.profile].device for group in spec.worker_groups if group.name in homes}
