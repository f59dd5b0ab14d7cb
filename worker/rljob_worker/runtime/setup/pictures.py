"""What makes patches of a job's pictures in this process."""

from __future__ import annotations

from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.vision.job_budgets import picture_budget, video_budget
from rljob_worker.vision.processing import PictureProcessor, shared_processor


def picture_processor(spec: RLJobSpec, policy: str) -> PictureProcessor | None:
    """The processor of a policy; None in a job without pictures. Raises InvalidJob for a checkpoint that takes none, or
    whose processor is not there or of another model."""
    if not spec.sees:
        return None
    return shared_processor(spec.source_of(policy).path, picture_budget(spec.data), video_budget(spec.data))
