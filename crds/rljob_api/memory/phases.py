"""What a worker has in memory, as the plan states it."""

from __future__ import annotations

from typing import Literal

from rljob_api.vocabulary.model import ApiModel, Items

LEAST_ASLEEP_BYTES = 64 << 20
"""What sleeps has to be brought back: a quarter of a second for each GiB of pages on a CPU. To give back less than this
does not help."""

MemoryPhase = Literal["load", "generate", "train", "sync", "checkpoint"]


class PhaseMemory(ApiModel):
    """Bytes of one worker in one phase: each part where it is most, and the most of all together."""

    phase: MemoryPhase
    weights: int = 0
    """Weights of every model in the worker, and what of them is gathered to compute with."""
    optimizer: int = 0
    gradients: int = 0
    activations: int = 0
    """What a forward pass keeps for its backward pass."""
    logits: int = 0
    """Logits of the tokens that are predicted at once, with their gradients and those of the last layer."""
    pictures: int = 0
    """Patches of a micro-batch's pictures, and what the vision tower computes of them."""
    cache: int = 0
    """Keys and values of the rows that are decoded at once."""
    checkpoint: int = 0
    """The copy that is written while steps go on; none of an accelerator's, as the copy lies in the host's."""
    delta: int = 0
    """What was sent or came last of weights that go as changes (weightSync.delta); in the host as well."""
    staged: int = 0
    """Slices of the next version, which come while one decodes (weightSync.staging)."""
    peak: int = 0
    """Together. Less than the sum where parts are most at different times."""
    host: int = 0
    """What waits in the memory of the host, which is not part of the accelerator's: what is offloaded or asleep,
    the copy of a checkpoint that is written, and at the start what an engine has of the model that it reads."""


class GroupMemory(ApiModel):
    """A worker of one group, phase by phase."""

    group: str
    room: int | None = None
    """Bytes that it has for its models. None where nobody knows: then no phase is checked."""
    phases: Items[PhaseMemory] = ()
    unknown: Items[str] = ()
    """Paths of models whose shape is not at hand; then there are no phases."""
