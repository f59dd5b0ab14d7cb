"""Tensors without memory, and what they held."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.devices.copies import wait_for_copies
from rljob_worker.engines.fsdp.optimizer.host_offload import HostOffload

SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=3), max_size=4)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.uint8, torch.float64])


@given(SHAPES, DTYPES, st.lists(st.booleans(), max_size=6))
def test_whatever_the_order_of_sleeping_and_waking_the_bits_are_there(shapes, dtype, sleeps):
    tensors = [(torch.rand(shape) * 100).to(dtype) for shape in shapes]
    before = [tensor.clone() for tensor in tensors]
    num_bytes = sum(tensor.nbytes for tensor in tensors)
    resting = HostOffload(tensors)
    for asleep in sleeps:
        (resting.sleep if asleep else resting.wake)()
        assert resting.is_asleep == asleep
        assert resting.held_bytes == (0 if asleep else num_bytes)
        assert all(torch.equal(resting.now(own), kept) for own, kept in zip(tensors, before, strict=True))
    resting.wake()
    assert all(torch.equal(own, kept) for own, kept in zip(tensors, before, strict=True))


def test_what_is_written_while_they_sleep_is_there_when_they_wake():
    tensor = torch.arange(4.0)
    resting = HostOffload([tensor])
    resting.sleep()
    resting.now(tensor).fill_(7)
    resting.wake()
    assert tensor.tolist() == [7, 7, 7, 7]
    tensor.fill_(8)
    resting.sleep()
    assert resting.now(tensor).tolist() == [8, 8, 8, 8]


@pytest.mark.gpu
def test_an_accelerator_has_its_memory_back():
    device = torch.device("cuda")
    tensors = [torch.rand(1 << 20, device=device) for _ in range(4)]
    before, held = [tensor.cpu() for tensor in tensors], torch.cuda.memory_allocated()
    resting = HostOffload(tensors)
    resting.sleep()
    wait_for_copies([device])
    assert held - torch.cuda.memory_allocated() == resting.held_bytes + 4 * 4 * (1 << 20)
    assert all(resting.now(own).is_pinned() for own in tensors)
    resting.wake()
    assert all(torch.equal(own.cpu(), kept) for own, kept in zip(tensors, before, strict=True))
