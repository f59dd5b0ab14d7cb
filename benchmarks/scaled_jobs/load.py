"""What the pods of a job do in a step: wait as long as computing would take, and move rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

COLUMNS = {
    "response_ids": "int64",
    "response_mask": "bool",
    "rollout_log_probs": "float32",
    "old_log_probs": "float32",
    "advantages": "float32",
}
TOKEN_BYTES = sum(np.dtype(dtype).itemsize for dtype in COLUMNS.values())
GROUP_SIZE = 4
GENERATING = 0.6
"""Share of the computing that comes before the rows move; training is the rest."""


@dataclass(frozen=True)
class JobLoad:
    """A job of some pods; every pod has as many rows and a link of the same speed."""

    pods: int
    rows: int
    """Of each pod."""
    tokens: int
    """Mean of a row; lengths are between half and one and a half times as many."""
    megabits: float
    speed: float
    """Tokens that a pod computes in a second, generating and training together."""

    @property
    def compute_seconds(self) -> float:
        return self.rows * self.tokens / self.speed

    @property
    def pod_bytes(self) -> int:
        """Bytes of a pod's rows in a step, in the mean."""
        return self.rows * self.tokens * TOKEN_BYTES

    @property
    def link_seconds(self) -> float:
        """A pod's rows over its link."""
        return self.pod_bytes * 8 / (self.megabits * 1e6)

    def lengths(self, pod: int) -> NDArray[np.int64]:
        """Tokens of a pod's rows, the same in every step; they add up to about the mean.

        Were it exactly, two pods would be balanced as they are, and no row would move.
        """
        generator = np.random.default_rng(pod)
        drawn = generator.uniform(0.5, 1.5, self.rows)
        about = generator.uniform(0.95, 1.05, self.rows)
        return (drawn * about * self.tokens * self.rows / drawn.sum()).astype(np.int64)


@dataclass(frozen=True)
class Measured:
    """The steps of one job."""

    load: JobLoad
    step_seconds: float
    steps: int
    cores: float
    """Processor of everything that moves rows."""
    busiest_seconds: float
    """Processor of the data buffer that took most, in a step."""
    sent: float
    """Bytes that the busiest pod's link sent in a step."""
    received: float
    memory: int
    """Most resident bytes of a data buffer."""

    @property
    def tokens_per_second(self) -> float:
        return self.load.pods * self.load.rows * self.load.tokens / self.step_seconds
