"""The coefficient of the KL penalty from step to step."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class KLController:
    """The KL coefficient as it changes from step to step; fixed without a target. A value: `update` returns
    the next one.

    β ← β · (1 + clip(kl / target - 1, -0.2, 0.2) · rows / horizon)

    Ziegler et al. 2019, https://arxiv.org/abs/1909.08593 section 2.2
    """

    coefficient: float
    target: float | None = None  # nats per row
    horizon: float = 10_000.0  # rows

    def update(self, kl: float, num_rows: int) -> KLController:
        """After a step: its KL in nats per row (metric `kl/reference_row`), its rows over all ranks."""
        if self.target is None:
            return self
        error = min(max(kl / self.target - 1.0, -0.2), 0.2)
        return replace(self, coefficient=self.coefficient * (1.0 + error * num_rows / self.horizon))

    def state_dict(self) -> dict[str, float]:
        """What changes, for a checkpoint; target and horizon are the job's."""
        return {"coefficient": self.coefficient}

    def with_state(self, state: dict[str, float]) -> KLController:
        """The controller of this job as it stood at a checkpoint; a fixed one keeps the job's coefficient."""
        return self if self.target is None else replace(self, coefficient=float(state["coefficient"]))
