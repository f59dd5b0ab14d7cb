"""What towers take that see pictures, and what encodes videos, in one worker: bytes."""

from __future__ import annotations

from math import ceil

from rljob_api.catalogue.optimizers import OPTIMIZERS
from rljob_api.memory.pictures import PictureMemory, picture_memory
from rljob_api.memory.sizes import NUMBER_BYTES, PREFILL_TOKENS
from rljob_api.memory.video_encoder import VideoEncoderShape
from rljob_api.planning.memory.layouts import packs_of
from rljob_api.planning.memory.models import WorkerModels
from rljob_api.planning.plan import EnginePlan


def tower_bytes(models: WorkerModels, engine: EnginePlan) -> int:
    """Bytes of the weights of a vision tower, divided over the ranks that train or score."""
    vision = models.shapes[engine.path].vision
    if vision is None:
        return 0
    if engine.kind == "Rollout":
        return vision.parameters * NUMBER_BYTES[models.plan.precision]
    return ceil(vision.parameters * models.layout(engine).stored / engine.mesh.shards)


def tower_state_bytes(models: WorkerModels, engine: EnginePlan) -> int:
    """Bytes of the optimizer of a tower that is trained."""
    vision, optimizer = models.shapes[engine.path].vision, models.plan.spec.training.optimizer
    if vision is None or not _trains_tower(models, engine):
        return 0
    per_state = {"Float32": 4, "BFloat16": 2, "Int8": 1}[optimizer.states]
    return ceil(vision.parameters * per_state * len(OPTIMIZERS[optimizer.name].states) / engine.mesh.shards)


def _trains_tower(models: WorkerModels, engine: EnginePlan) -> bool:
    return engine.trainable and models.plan.spec.source_of(engine.model).vision.train


def pictures_of_update(models: WorkerModels, engine: EnginePlan) -> PictureMemory:
    """What a micro-batch takes that is pictures altogether, within `patchesPerMicroBatch`."""
    spec, vision = models.plan.spec, models.shapes[engine.path].vision
    if vision is None or not spec.sees:
        return PictureMemory()
    longest = spec.data.max_prompt_tokens
    all_tokens, tokens = packs_of(models.plan, engine)
    if (most := spec.training.patches_per_micro_batch) is not None:
        tokens = min(tokens, max(longest, most // vision.merge**2))  # a prompt with more goes alone
    return picture_memory(
        vision,
        models.layout(engine),
        tokens,
        trained=_trains_tower(models, engine),
        recompute=engine.recomputes,
        several=all_tokens > tokens,
    )


def prompt_picture_bytes(models: WorkerModels, engine: EnginePlan) -> int:
    """Bytes of the pictures of prompts that are computed at once, and are pictures altogether."""
    spec, vision = models.plan.spec, models.shapes[engine.path].vision
    if vision is None or not spec.sees:
        return 0
    longest, computed = spec.data.max_prompt_tokens, NUMBER_BYTES[models.plan.precision]
    prompts = ceil(spec.num_rows / engine.mesh.dp / spec.algorithm.group_size)
    tokens = min(max(PREFILL_TOKENS, longest), prompts * longest)
    return vision.kept_bytes(tokens, computed, trained=False) + vision.working_bytes(tokens, computed)


def video_encoder_bytes(models: WorkerModels) -> int:
    """Bytes of the weights of what encodes videos, which is on CPUs."""
    return max((item.weight_bytes for item in _video_encoders(models)), default=0)


def video_bytes(models: WorkerModels) -> int:
    """Bytes of the one video that it encodes while episodes are played."""
    simulator = models.plan.spec.rollout.simulator
    frames = 0 if simulator is None or simulator.video is None else simulator.video.frames
    return max((item.video_bytes(frames) for item in _video_encoders(models)), default=0)


def _video_encoders(models: WorkerModels) -> list[VideoEncoderShape]:
    shapes = (models.shapes[engine.path].videos for engine in models.generating)
    return [shape for shape in shapes if shape is not None]
