"""The Muon optimizer that trains the tiny model."""

import torch

from rljob_worker.tiny.muon import Muon, orthogonalized


def test_one_step_of_the_iteration_maps_every_singular_value_by_the_polynomial():
    # singular values 4 and 3 over the norm 5 are 0.8 and 0.6; a s + b s^3 + c s^5:
    # 0.8: 2.7556 - 4.7750 * 0.512 + 2.0315 * 0.32768 = 0.97648
    # 0.6: 2.0667 - 4.7750 * 0.216 + 2.0315 * 0.07776 = 1.19327
    tall = torch.tensor([[0.0, 4.0], [3.0, 0.0], [0.0, 0.0]])
    expected = torch.tensor([[0.0, 0.97648], [1.19327, 0.0], [0.0, 0.0]])
    torch.testing.assert_close(orthogonalized(tall, steps=1), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(orthogonalized(tall.T, steps=1), expected.T, atol=1e-4, rtol=0)


def test_five_steps_bring_singular_values_from_a_hundredth_up_to_near_one():
    left, _ = torch.linalg.qr(random((64, 24), seed=0))
    right, _ = torch.linalg.qr(random((24, 24), seed=1))
    matrix = left @ torch.diag(torch.logspace(-1.8, 0, 24)) @ right
    values = torch.linalg.svdvals(orthogonalized(matrix))
    assert 0.68 < values.min() < values.max() < 1.14


def test_zeros_stay_zeros():
    assert torch.equal(orthogonalized(torch.zeros(3, 2)), torch.zeros(3, 2))


def test_updates_are_those_of_torch_without_its_rounding_to_bfloat16():
    ours, theirs = ([random(shape, seed=7).requires_grad_() for shape in ((48, 12), (12, 48))] for _ in range(2))
    optimizers = [Muon(ours, lr=0.1, weight_decay=0.5), torch.optim.Muon(theirs, lr=0.1, weight_decay=0.5)]
    for step in range(4):
        for weights, optimizer in zip((ours, theirs), optimizers, strict=True):
            for weight in weights:
                weight.grad = random(weight.shape, seed=step)
            optimizer.step()
    # four updates with entries up to 0.1 * 2 * 1.14, each off by bfloat16's 2^-8 a few times over
    for weight, same in zip(ours, theirs, strict=True):
        torch.testing.assert_close(weight, same, atol=4e-3, rtol=0)


def random(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
