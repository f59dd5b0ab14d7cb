"""What a difference between ranks is called, and that forward passes on CUDA devices have none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.engines.models import empty_policy
from rljob_worker.engines.tests.builders import write_config
from rljob_worker.engines.tests.collective_order import Call, divergence, read_calls, written_calls
from rljob_worker.engines.tests.fake_cuda import calls_of_ranks, world_of_fakes
from rljob_worker.engines.tests.ranks import run_ranks

PAIR, ALL = ((0, 1), "pair"), ((0, 1, 2), "all")
SUM, GATHER, MESSAGE = ("allreduce", "float32[2]"), ("all_gather_single", "float32[4]"), "float32[8]"


def test_ranks_that_call_alike_do_not_differ() -> None:
    both = [Call(*ALL, *SUM), Call(*PAIR, *GATHER)]
    assert divergence([both, both, both[:1]]) == ""
    sent, received = Call(*PAIR, "send", MESSAGE, 1), Call(*PAIR, "recv", MESSAGE, 0)
    assert divergence([[sent, *both], [*both, received], both[:1]]) == ""  # messages wait for nobody else


def test_a_difference_names_the_rank_the_communicator_and_the_call() -> None:
    usual = [Call(*ALL, *SUM), Call(*PAIR, *SUM), Call(*ALL, *SUM)]
    other = [Call(*ALL, *SUM), Call(*PAIR, *SUM), Call(*ALL, *GATHER)]
    assert divergence([other, usual, [usual[0], usual[2]]]) == (
        "rank 0, communicator all of ranks 0, 1, 2, call 2: all_gather_single float32[4], where rank 1 has allreduce "
        "float32[2]"
    )
    reduced, drawn = (Call(*PAIR, name, "float32[2]") for name in ("allreduce", "broadcast"))
    assert "broadcast float32[2], where rank 0 has allreduce float32[2]" in divergence([[reduced], [drawn]])
    assert divergence([usual, usual, usual[:1]]) == (
        "rank 2, communicator all of ranks 0, 1, 2, call 2: nothing, where rank 0 has allreduce float32[2]"
    )


def test_a_difference_between_two_communicators_is_found() -> None:
    calls = [Call(*ALL, *SUM), Call(*PAIR, *GATHER)]
    assert divergence([calls, calls[::-1], calls[:1]]) == (
        "rank 1, communicator pair, call 1: all_gather_single float32[4], where rank 0 calls communicator all: "
        "allreduce float32[2]"
    )


def test_a_message_that_is_not_awaited_is_found() -> None:
    sent, received = Call(*PAIR, "send", MESSAGE, 1), Call(*PAIR, "recv", "float32[9]", 0)
    assert divergence([[sent], []]) == (
        "rank 1, communicator pair, message 1 of rank 0, tag 0: receives nothing, where rank 0 sends float32[8]"
    )
    assert "receives float32[9], where rank 0 sends float32[8]" in divergence([[sent], [received]])


def test_messages_are_told_apart_by_their_ends_and_tags() -> None:
    first, second = (Call(*PAIR, "send", MESSAGE, 1, tag) for tag in (1, 2))
    one, other = (Call(*PAIR, "recv", MESSAGE, 0, tag) for tag in (1, 2))
    assert divergence([[first, second], [other, one]]) == ""
    assert "tag 1: receives nothing" in divergence([[first], [other]])
    to_last, from_last = Call(*ALL, "send", MESSAGE, 2), Call(*ALL, "recv", MESSAGE, 2)
    assert "message 1 of rank 0, tag 0: receives nothing" in divergence([[to_last], [from_last], []])


def test_what_a_rank_calls_is_written_in_full(tmp_path: Path) -> None:
    values, path = torch.zeros(4), tmp_path / "0.calls"
    with world_of_fakes(0, 2), written_calls(path):
        dist.all_reduce(values, dist.ReduceOp.MAX)
        dist.broadcast(values, src=1)
        dist.all_gather_single(torch.zeros(8), values)
        dist.all_to_all_single(torch.zeros(5), values, [1, 4], [2, 2])
        dist.send(values, dst=1, tag=3)
        found = read_calls(path)  # while the file is open, as where a rank hangs
    assert [(call.ranks, call.peer, call.tag) for call in found] == [((0, 1), None, 0)] * 4 + [((0, 1), 1, 3)]
    assert [str(call).partition(" ")[2] for call in found] == [
        "float32[4] MAX",
        "float32[4] root 1",
        "float32[8] float32[4]",
        "float32",
        "float32[4]",
    ]


def test_a_call_is_written_before_it_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path, found = tmp_path / "0.calls", list[Call]()
    monkeypatch.setattr(dist.ProcessGroup, "allreduce", lambda *_: found.extend(read_calls(path)))
    with world_of_fakes(0, 2), written_calls(path):
        dist.all_reduce(torch.zeros(4))
    assert [call.operation for call in found] == ["allreduce"]


def differ(rank: int) -> None:
    """In the third call of the pair: gloo does not see it."""
    pair = dist.new_group([0, 1])
    dist.all_reduce(torch.zeros(2))
    for step in range(3):
        other = rank == 1 and step == 2
        dist.all_reduce(torch.zeros(2, dtype=torch.int32 if other else torch.float32), group=pair)


def test_every_world_of_ranks_is_searched(tmp_path: Path) -> None:
    with pytest.raises(
        AssertionError, match=r"rank 1, .* of ranks 0, 1, call 3: allreduce int32\[2\] SUM, where rank 0"
    ):
        run_ranks(2, differ, tmp_path)


@pytest.mark.parametrize(
    "mesh", [Mesh(tp=2), Mesh(cp=2), Mesh(cp=3), Mesh(cp=2, tp=2)], ids=["tp 2", "cp 2", "a ring", "cp 2, tp 2"]
)
def test_ranks_on_cuda_call_alike_and_wait_for_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mesh: Mesh
) -> None:
    path = write_config(tmp_path / "model")
    models = [empty_policy(path, torch.bfloat16).eval() for _ in range(mesh.size)]
    asked, calls = calls_of_ranks(monkeypatch, tmp_path, models, mesh)
    assert all(calls) and divergence(calls) == ""
    assert [rank.waits for rank in asked] == [[]] * mesh.size
    assert "rank 1, communicator" in divergence([calls[0], calls[1][:-1], *calls[2:]])
