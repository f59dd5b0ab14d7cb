"""The clipped value loss, by hand."""

import torch

from rljob_worker.algorithms.tests.builders import double
from rljob_worker.algorithms.values.losses import clipped_value_loss


def test_clipped_value_loss_by_hand():
    # V_old = 0, clip 0.2.
    # V 0.1, R 1: not clipped, ½·0.81 = 0.405, gradient V - R = -0.9
    # V 0.5, R 1: V_c = 0.2, max(0.25, 0.64): ½·0.64 = 0.32, no gradient: it has moved far enough towards R
    # V 0.5, R 0: V_c = 0.2, max(0.25, 0.04): ½·0.25 = 0.125, gradient 0.5: it overshot
    values = double(0.1, 0.5, 0.5).requires_grad_()
    result = clipped_value_loss(values, double(0, 0, 0), double(1, 1, 0), 0.2)
    result.losses.sum().backward()
    assert torch.allclose(result.losses, double(0.405, 0.32, 0.125))
    assert torch.allclose(values.grad, double(-0.9, 0, 0.5))
    assert result.clipped.tolist() == [False, True, False]


def test_without_a_clip_it_is_half_the_square():
    values = double(0.5).requires_grad_()
    result = clipped_value_loss(values, double(0), double(1), None)
    result.losses.sum().backward()
    assert result.losses.tolist() == [0.125]
    assert values.grad.tolist() == [-0.5]
    assert result.clipped.tolist() == [False]
