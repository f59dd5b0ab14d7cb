"""Steps in which only the critic learns, and the policy stays as it is."""

from __future__ import annotations

from rljob_api.v1alpha1 import RLJobSpec


def is_warm_up(spec: RLJobSpec, step: int) -> bool:
    """Whether a step (1-based) leaves the policy alone."""
    critic = spec.algorithm.critic
    return critic is not None and step <= critic.warmup_steps


def policy_version(spec: RLJobSpec, step: int) -> int:
    """The version of the weights that a step leaves behind: the last step that changed them, 0 before any did."""
    return 0 if step == 0 or is_warm_up(spec, step) else step
