"""What a forward pass of an engine's model gives of the response tokens."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import torch

from rljob_worker.engines.log_probs.linear import EntropyUse, LastLayer
from rljob_worker.engines.micro_batch import MicroBatch, response_log_probs
from rljob_worker.engines.models import ValueModel


@dataclass(frozen=True, slots=True)
class Outputs:
    """Outputs for each response token, [tokens]; None is what was not asked for."""

    log_probs: torch.Tensor
    entropy: torch.Tensor | None = None
    values: torch.Tensor | None = None
    full_kl: torch.Tensor | None = None

    def detach(self) -> Outputs:
        """The numbers alone."""
        outputs = (getattr(self, field.name) for field in fields(self))
        return Outputs(*(None if output is None else output.detach() for output in outputs))

    def zero(self) -> torch.Tensor:
        """A zero that a backward pass follows through every output."""
        outputs = (getattr(self, field.name) for field in fields(self))
        return sum(
            (output.sum() * 0.0 for output in outputs if output is not None and output.requires_grad),
            start=self.log_probs.new_zeros(()),
        )


@runtime_checkable
class ReferenceModel(Protocol):
    """What the divergence of whole distributions is taken from: an `FSDPEngine`, or the base of one."""

    def last_layer(self, rows: MicroBatch) -> LastLayer | None: ...

    def free_gathered_weights(self) -> None: ...


def compared_with(reference: ReferenceModel | None, rows: MicroBatch, names: frozenset[str]) -> LastLayer | None:
    """What the whole divergence is taken from, where an `Objective` asks for it; on the last pipeline stage."""
    if "full_kl" not in names:
        return None
    assert reference is not None, "the whole divergence was asked for without a reference"
    return reference.last_layer(rows)


def outputs(
    model: torch.nn.Module, rows: MicroBatch, names: frozenset[str], temperature: float, compared: LastLayer | None
) -> Outputs:
    """names: what an `Objective` asks for; compared: what the whole divergence is taken from. Of a critic only the
    values mean anything."""
    if isinstance(model, ValueModel):
        values = values_of(model, rows)
        return Outputs(torch.full_like(values.detach(), torch.nan), values=values)
    assert "values" not in names, "values were asked of a policy"
    result = response_log_probs(model, rows, temperature, entropy=_entropy_use(names), reference=compared)
    return Outputs(result.log_probs, result.entropy, full_kl=result.full_kl)


def values_of(model: torch.nn.Module, rows: MicroBatch) -> torch.Tensor:
    """[responses], in at least float32."""
    assert isinstance(model, ValueModel), "values were asked of a policy"
    values = model(rows.predicts, **rows.inputs)
    return rows.whole(values if values.dtype == torch.float64 else values.float())


def _entropy_use(names: frozenset[str]) -> EntropyUse:
    if "entropy" in names:
        return "Loss"
    return "Figure" if "entropy_figure" in names else "None"
