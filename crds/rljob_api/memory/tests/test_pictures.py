"""A tower beside its decoder, in numbers that a head can follow."""

import pytest

from rljob_api.memory.pictures import PictureMemory
from rljob_api.memory.training import UpdateMemory


@pytest.mark.parametrize(
    "decoder, gradients, peak",
    [
        (100, 0, 100 + 4),  # what the tower worked with is gone
        (10, 0, 20 + 4 + 50),  # a decoder that takes less, beside gradients of earlier micro-batches
        (100, 6, 100 + 6 + 4),
        (10, 6, 30 + 6 + 4 + 50),  # a tower that comes back when gradients of the decoder are there
    ],
)
def test_a_tower_is_at_work_before_its_decoder_and_behind_it(decoder, gradients, peak):
    update = UpdateMemory(gradients=30, activations=0, logits=0, peak=decoder, before=20)
    seen = PictureMemory(kept=4, working=50, gradients=gradients, gradients_before=gradients)
    assert seen.peak(update) == peak
