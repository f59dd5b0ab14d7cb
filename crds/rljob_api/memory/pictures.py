"""Memory of a tower and of the pictures that it computes, beside that of the decoder in one pass.

before     the tower computes, and nothing of the decoder is there but gradients of earlier micro-batches
meanwhile  the decoder computes, forward and back, beside what is kept of pictures
behind     a tower that is trained comes back, when what the decoder kept is gone
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from rljob_api.memory.model_shape import Tower
from rljob_api.memory.parallel_layout import ParallelLayout
from rljob_api.memory.training import UpdateMemory


@dataclass(frozen=True, slots=True)
class PictureMemory:
    """Bytes; nothing of a model that does not see."""

    kept: int = 0
    """What a micro-batch's pictures keep while the decoder computes."""
    working: int = 0
    """Beyond that while the tower computes."""
    gradients: int = 0
    """Those of a tower that is trained."""
    gradients_before: int = 0
    """What is there of them when the last micro-batch comes."""
    gathered: int = 0
    """Weights of the tower to compute with, besides the shard."""

    @property
    def pictures(self) -> int:
        return self.kept + self.working

    def peak(self, update: UpdateMemory) -> int:
        """With what the decoder takes in the same pass."""
        before = update.before + self.gradients_before + self.pictures
        meanwhile = update.peak + self.gradients_before + self.kept
        behind = update.gradients + self.gradients + self.pictures if self.gradients else 0
        return self.gathered + max(before, meanwhile, behind)


def picture_memory(
    tower: Tower, layout: ParallelLayout, tokens: int, *, trained: bool, recompute: bool, several: bool
) -> PictureMemory:
    """layout: of the decoder, with which the tower is spread. tokens: that the decoder reads of pictures. several:
    whether gradients of micro-batches add up."""
    again = trained and recompute
    gradients = 0
    if trained:
        is_whole = layout.is_whole or (layout.is_held and several)
        gradients = ceil(tower.parameters * layout.stored / (1 if is_whole else layout.ranks))
    return PictureMemory(
        tower.kept_bytes(tokens, layout.computed, trained=trained, recompute=again),
        tower.working_bytes(tokens, layout.computed, again=again),
        gradients,
        gradients * several,
        _gathered(tower, layout),
    )


def _gathered(tower: Tower, layout: ParallelLayout) -> int:
    """Bytes of the tower's weights: all where the model stays whole, else what is not in its blocks, since those of
    decoder and tower are never at work together."""
    if layout.is_whole:
        return 0
    whole = layout.on_cpu and layout.is_held
    return (tower.parameters if whole else tower.outside_blocks) * layout.computed
