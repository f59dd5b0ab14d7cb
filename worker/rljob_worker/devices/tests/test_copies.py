from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from rljob_worker.devices.copies import in_one_copy, on_device

CPU = torch.device("cpu")


def test_tensors_that_share_memory_keep_their_numbers_and_shapes() -> None:
    tensors = [
        torch.arange(3),
        torch.tensor([[True, False, True]]),
        torch.empty(0, 4),
        torch.from_numpy(np.arange(5)[[]]),  # as a rank has it that predicts nothing; its strides are 0
        torch.arange(6, dtype=torch.int32).view(2, 3).T,
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.tensor(7.25, dtype=torch.float64),
    ]
    moved = in_one_copy(tensors, CPU)
    assert len({item.untyped_storage().data_ptr() for item in moved}) == 1
    for before, after in zip(tensors, moved, strict=True):
        assert after.dtype == before.dtype and torch.equal(after, before)


@dataclass(frozen=True)
class Leaf:
    numbers: torch.Tensor
    name: str


@dataclass(frozen=True)
class Tree:
    leaves: tuple[Leaf, ...]
    left_out: Leaf | None
    kind: type = Leaf


def test_tensors_go_to_a_device_wherever_they_are() -> None:
    tree = Tree((Leaf(torch.arange(2), "a"), Leaf(torch.arange(5), "b")), None)
    moved = on_device(tree, torch.device("meta"))
    assert [(leaf.name, leaf.numbers.device.type, len(leaf.numbers)) for leaf in moved.leaves] == [
        ("a", "meta", 2),
        ("b", "meta", 5),
    ]
    assert moved.left_out is None and moved.kind is Leaf and on_device(tree, CPU) is tree
