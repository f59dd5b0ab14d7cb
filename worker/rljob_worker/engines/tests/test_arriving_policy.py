"""A policy is only whole when every tensor came once."""

import pytest
import torch

from rljob_worker.engines.arriving_policy import copy_policy
from rljob_worker.errors import InvalidJob


def model(**shapes: tuple[int, ...]) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(shape) for name, shape in shapes.items()}


def ones(*names: str) -> list[tuple[str, torch.Tensor]]:
    return [(name, torch.ones(2)) for name in names]


def test_tensors_come_in_any_order_and_in_another_precision() -> None:
    targets = model(a=(2,), b=(1, 3))
    copy_policy(targets, iter([("b", torch.tensor([[1, 2, 3]])), ("a", torch.ones(2, dtype=torch.bfloat16))]), 1)
    assert targets["a"].tolist() == [1.0, 1.0] and targets["a"].dtype == torch.float32
    assert targets["b"].tolist() == [[1.0, 2.0, 3.0]]


def test_parameters_that_are_trained_are_filled_too() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    copy_policy({"a": parameter}, ones("a"), 1)
    assert parameter.tolist() == [1.0, 1.0] and parameter.grad_fn is None


def test_a_tensor_that_is_lent_is_not_copied() -> None:
    lent = torch.ones(1).expand(2)  # torch refuses to write to it: its elements lie in one place
    copy_policy({"a": lent}, [("a", lent.detach())], 1)
    with pytest.raises(RuntimeError, match="single memory location"):
        copy_policy({"a": lent}, [("a", torch.ones(2))], 2)


@pytest.mark.parametrize("name", ["head", "embedding"])
def test_what_is_tied_comes_under_any_of_its_names(name: str) -> None:
    tied = torch.zeros(2)
    copy_policy({"embedding": tied, "head": tied}, ones(name), 1)
    assert tied.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (ones("a", "b"), r"^weights of policy version 7: c of the rollout model did not come; both engines must load"),
        (ones("a"), r"7: b, c of the rollout model did not come"),
        (ones("a", "a", "b", "c"), r"7: a came twice, under this name or one that it is tied to;"),
        (ones("a", "b", "c", "d"), r"7: d of shape \(2,\), but the rollout model has none of that name"),
        ([("a", torch.ones(3))], r"7: a of shape \(3,\), but the rollout model has one of shape \(2,\)"),
    ],
)
def test_a_policy_that_is_not_whole_is_refused_by_name(sent: list[tuple[str, torch.Tensor]], message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        copy_policy(model(a=(2,), b=(2,), c=(2,)), sent, 7)


def test_both_names_of_a_tied_tensor_are_one_too_many() -> None:
    tied = torch.zeros(2)
    with pytest.raises(InvalidJob, match="head came twice"):
        copy_policy({"embedding": tied, "head": tied}, ones("embedding", "head"), 1)


def test_of_many_missing_tensors_some_are_named() -> None:
    with pytest.raises(InvalidJob, match=r": p0, p1, p2 and 7 more of the rollout model did not come"):
        copy_policy(model(**{f"p{number}": (2,) for number in range(10)}), [], 1)
    with pytest.raises(InvalidJob, match=r": p0, p1, p2 of the rollout model did not come"):
        copy_policy(model(p0=(2,), p1=(2,), p2=(2,)), [], 1)
