"""Generation with nothing but transformers: `TransformersRollout`, and `OneForwardRollout` of models whose responses
take one forward pass."""

from rljob_worker.engines.rollout.transformers.engine import TransformersRollout
from rljob_worker.engines.rollout.transformers.one_forward import OneForwardRollout

__all__ = ["OneForwardRollout", "TransformersRollout"]
