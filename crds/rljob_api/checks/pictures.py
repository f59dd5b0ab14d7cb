"""Do the settings of pictures go together, and does everything that reads them see?"""

from __future__ import annotations

from collections.abc import Iterator

from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_api.checks.subject import Subject, problem
from rljob_api.v1alpha1 import RLJobSpec
from rljob_api.vocabulary.problem import Problem


def check_pictures(subject: Subject) -> Iterator[Problem]:
    """Budgets, columns, engines and towers."""
    spec = subject.spec
    yield from _budgets(spec)
    yield from _columns(spec)
    yield from _towers(spec)
    patches = spec.training.patches_per_micro_batch
    if patches is not None and not spec.sees:
        message = "no row has pictures, so that there are no patches"
        yield problem(
            "spec.training.patchesPerMicroBatch",
            patches,
            message,
            "Write data.imagesColumn or data.videosColumn, or leave it out.",
        )
    if spec.sees:
        yield from _engines(spec)


def _budgets(spec: RLJobSpec) -> Iterator[Problem]:
    """Bounds of sizes that no picture could keep."""
    for name, budget in (("image", spec.data.image), ("video", spec.data.video)):
        if budget.min_pixels > budget.max_pixels:
            message = f"this is more than data.{name}.maxPixels, {budget.max_pixels}"
            fix = f"Write at most {budget.max_pixels}, or raise data.{name}.maxPixels."
            yield problem(f"spec.data.{name}.minPixels", budget.min_pixels, message, fix)


def _columns(spec: RLJobSpec) -> Iterator[Problem]:
    """One column cannot be the prompt and its pictures."""
    for name, column in (("imagesColumn", spec.data.images_column), ("videosColumn", spec.data.videos_column)):
        if column is not None and column == spec.data.prompt_column:
            message = "this is data.promptColumn, which holds the text of the prompt"
            yield problem(f"spec.data.{name}", column, message, "Write the name of the column with pictures.")
    videos = spec.data.videos_column
    if videos is None:
        return
    if videos == spec.data.images_column:
        message = "this is data.imagesColumn, which holds pictures"
        yield problem("spec.data.videosColumn", videos, message, "Write the name of the column with videos.")
    if spec.rollout.conversation is not None:
        message = "conversations are not shown videos: this is not built yet"
        yield problem("spec.data.videosColumn", videos, message, "Leave it out, or rollout.conversation.")


def _towers(spec: RLJobSpec) -> Iterator[Problem]:
    """A learning rate of what is not trained, and a tower that never has an input."""
    for i, model in enumerate(spec.models):
        vision = model.vision
        if vision.learning_rate is not None and not vision.train:
            message = "the vision tower is not trained, so that nothing has this learning rate"
            fix = "Write train: true beside it, or leave it out."
            yield problem(f"spec.models[{i}].vision.learningRate", vision.learning_rate, message, fix)
        if vision.train and not spec.sees:
            message = "no row has pictures, so that the vision tower would learn nothing"
            fix = "Write data.imagesColumn or data.videosColumn, or leave it out."
            yield problem(f"spec.models[{i}].vision.train", True, message, fix)
        if vision.train and model.adapter is not None:
            message = "the model trains an adapter, which is beside the decoder: a tower with it is not built yet"
            yield problem(f"spec.models[{i}].vision.train", True, message, "Leave it out, or adapter.")


def shown_at(spec: RLJobSpec) -> tuple[str, str | bool]:
    """Where a job first says that policies are shown something, and the value there."""
    for name, column in (("imagesColumn", spec.data.images_column), ("videosColumn", spec.data.videos_column)):
        if column is not None:
            return f"spec.data.{name}", column
    return "spec.rollout.conversation.pictures", True


def _engines(spec: RLJobSpec) -> Iterator[Problem]:
    """What computes with prompts takes their pictures."""
    path, value = shown_at(spec)
    engine = ROLLOUT_ENGINES.find(spec.rollout.engine)
    if engine is not None and not engine.sees:
        names = " or ".join(item.name for item in ROLLOUT_ENGINES.built_in.values() if item.sees)
        fix = f"Write rollout.engine: {names}." if names else "Leave it out."
        yield problem(path, value, f"rollout.engine {engine.name} takes no pictures", fix)
    if spec.training.engine == "Megatron":
        message = "training.engine Megatron has no models that see"
        yield problem(path, value, message, "Write training.engine: FSDP.")
