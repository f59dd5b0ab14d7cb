"""Which version of the weights a step leaves behind, and which one it generates with: functions of its number.

With `rollout.maxStaleness` S generation runs up to S steps ahead of training, here S = 1:

    generation   1 (0)  2 (0)  3 (1)  4 (2)  5 (3)          step (version that draws it)
    training            1 → 1  2 → 2  3 → 3  4 → 4          step → version that it leaves behind
"""

from __future__ import annotations

from rljob_api.v1alpha1 import RLJobSpec


def warm_up_steps(spec: RLJobSpec) -> int:
    """Steps from the first on in which only the critic learns."""
    critic = spec.algorithm.critic
    return 0 if critic is None else critic.warmup_steps


def is_warm_up(spec: RLJobSpec, step: int) -> bool:
    """Whether only the critic learns in a step (1-based), and the policy stays as it is."""
    return step <= warm_up_steps(spec)


def policy_version(spec: RLJobSpec, step: int) -> int:
    """The version of the weights that a step leaves behind: the last step that changed them, 0 before any did."""
    return 0 if step <= 0 or is_warm_up(spec, step) else step


def num_updates(spec: RLJobSpec, version: int) -> int:
    """Steps that have changed the policy up to a version: by these staleness is counted."""
    return max(0, version - warm_up_steps(spec))


def generating_version(spec: RLJobSpec, step: int, *, oldest: int = 0) -> int:
    """The version that generation step `step` (1-based) draws with: of the step `maxStaleness` + 1 before it.

    oldest: where a job goes on that keeps no older version.
    """
    return max(oldest, policy_version(spec, step - 1 - spec.rollout.max_staleness))


NUM_CARRY_AGES = 8
"""With `rollout.partial`, tokens of so many carries have metrics of their own; older ones have them together."""


def most_versions_behind(spec: RLJobSpec) -> int:
    """How many updates older than the weights that a step begins to train those may be that drew its tokens, as far as
    metrics tell them apart: 0 in a synchronous job whose responses all end in their step."""
    partial = spec.rollout.partial
    return spec.rollout.max_staleness + (min(partial.max_carries, NUM_CARRY_AGES) if partial is not None else 0)


def versions_in_flight(spec: RLJobSpec, step: int) -> tuple[int, ...]:
    """Versions older than that of `step` that the generation steps after it draw with, ascending: what a checkpoint of
    the step has besides its own weights. None with a staleness of 0."""
    staleness = spec.rollout.max_staleness
    coming = {generating_version(spec, step + ahead) for ahead in range(1, staleness + 1)}
    return tuple(sorted(coming - {policy_version(spec, step)}))
