"""Generation with nothing but transformers: `TransformersRollout`."""

from rljob_worker.engines.rollout.transformers.engine import TransformersRollout

__all__ = ["TransformersRollout"]
