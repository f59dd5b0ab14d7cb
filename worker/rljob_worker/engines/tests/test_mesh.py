"""Meshes over four real ranks: who adds up with whom, what leaders tell, and what a mesh of one rank does not cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from rljob_api.pipeline.meshes import Mesh
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.engines.fsdp.collectives import Agreement
from rljob_worker.engines.parallel.mesh import alone, build_meshes
from rljob_worker.engines.parallel.mesh_ranks import COPY, SHARDS
from rljob_worker.engines.tests.ranks import run_ranks
from rljob_worker.errors import BadData, PeerLost

CPU = torch.device("cpu")
TENSOR, CONTEXT, DATA, ONE_COPY = Mesh(dp=2, tp=2), Mesh(dp=2, cp=2), Mesh(dp=4), Mesh(tp=4)
ALL = [TENSOR, CONTEXT, DATA, ONE_COPY, TENSOR]


class Counted:
    """torch.distributed's functions with the number of their calls."""

    def __init__(self, patch: pytest.MonkeyPatch, *names: str) -> None:
        self.calls: list[str] = []
        for name in names:
            patch.setattr(dist, name, self._counting(name, getattr(dist, name)))

    def _counting(self, name: str, function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append(name)
            return function(*arguments, **options)

        return call

    def take(self) -> list[str]:
        calls, self.calls = self.calls, []
        return calls


def meet(rank: int) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        return find(rank, Counted(patch, "new_group", "all_reduce", "broadcast", "all_gather_single"))


def find(rank: int, counted: Counted) -> dict[str, Any]:
    meshes = build_meshes(ALL, rank, CPU, deadline_seconds=TEST_TIMEOUT_SECONDS)
    result: dict[str, Any] = {"made": len(counted.take()), "meshes": len(meshes)}
    tensor, context, data, one_copy = (meshes[mesh] for mesh in (TENSOR, CONTEXT, DATA, ONE_COPY))
    result["groups"] = {
        name: (ranks_of(mesh.group("dp")), ranks_of(mesh.group(*COPY)), ranks_of(mesh.group(*SHARDS)))
        for name, mesh in (("tensor", tensor), ("context", context), ("data", data), ("one copy", one_copy))
    }
    result["other axes"] = ranks_of(tensor.group("tp")), ranks_of(tensor.group("cp")), ranks_of(context.group("cp"))
    result["world"] = data.group("dp") is dist.group.WORLD and one_copy.group("tp") is dist.group.WORLD
    result["shared"] = tensor.group("dp") is context.group("dp")
    result["leads"] = [mesh.is_leader for mesh in (tensor, context, data, one_copy)]
    for name, mesh in (("tensor", tensor), ("context", context), ("data", data), ("one copy", one_copy)):
        own = torch.tensor([10.0 ** (rank // mesh.mesh.ranks_per_copy), 1.0], dtype=torch.float64)
        result[f"sum {name}"] = mesh.sum(own).tolist(), own.tolist(), counted.take()
    # a peer that is off by a little gets what leaders make of theirs
    result["leaders' sum"] = tensor.sum(torch.tensor([1.0 if tensor.is_leader else 1.5])).tolist()
    # to rank n go n rows
    parts = [torch.full((to, 1), 10 * rank + to) for to in range(4)]
    result["exchanged"] = [part.tolist() for part in data.exchange(parts)]
    result["counts"] = {
        name: Agreement(mesh).gather([mesh.mesh.dp_rank(rank), 7.0]).tolist()
        for name, mesh in (("tensor", tensor), ("context", context), ("data", data), ("one copy", one_copy))
    }
    gradients = [torch.full((2,), float(2 * mesh_rank(context.group(*SHARDS)) + 1))]
    result["norms"] = (
        Agreement(context).gradient_norm(gradients, []),
        Agreement(tensor).gradient_norm(gradients, []),
        Agreement(tensor).gradient_norm([], gradients),
    )
    counted.take()
    result["told"] = [group_report(mesh, rank, (2, 2)) for mesh in (tensor, context, data, one_copy)]
    result["broadcasts"] = counted.take()
    result["ranges"] = [mesh.range_in_copy(rank - 2 + (1 << 40)) for mesh in (tensor, context, data, one_copy)]
    result["failure"] = failure(tensor, rank)
    result["after"] = group_report(tensor, rank, (2, 2))
    return result


def ranks_of(group: dist.ProcessGroup | None) -> list[int] | None:
    return None if group is None else dist.get_process_group_ranks(group)


def mesh_rank(group: dist.ProcessGroup | None) -> int:
    assert group is not None
    return group.rank()


def group_report(mesh: Any, rank: int, shape: tuple[int, ...]) -> tuple[list[Any], Any, bool]:
    """What a copy hears of its leader, who says its rank; and whether this rank worked for it."""
    worked = []

    def work() -> tuple[np.ndarray, str]:
        worked.append(rank)
        return np.array([[rank, 0.1], [np.nan, rank + 0.5]]), f"from {rank}"

    array, rest = mesh.from_leader(shape, work)
    assert array.dtype == np.float64
    return np.nan_to_num(array, nan=-1).tolist(), rest, bool(worked)


def failure(mesh: Any, rank: int) -> str:
    """The leader of the first copy fails; the other copy goes on."""

    def work() -> tuple[np.ndarray, None]:
        if rank == 0:
            raise BadData("reward raised")
        return np.zeros(1), None

    try:
        mesh.from_leader((1,), work)
    except (BadData, PeerLost) as error:
        return f"{type(error).__name__}: {error}"
    return "fine"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What four ranks found, once for all tests."""
    return run_ranks(4, meet, tmp_path_factory.mktemp("ranks"))


def test_groups_are_made_once_and_only_by_those_who_are_in_them(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["meshes"] == 4
        assert rank["made"] == 2, "a row and a column of the square; the world is there"
        assert rank["world"] and rank["shared"]


def test_each_axis_has_its_own_ranks(ranks: list[dict[str, Any]]) -> None:
    square = [([0, 2], [0, 1]), ([1, 3], [0, 1]), ([0, 2], [2, 3]), ([1, 3], [2, 3])]
    for result, (column, row) in zip(ranks, square, strict=True):
        assert result["groups"] == {
            "tensor": (column, row, column),
            "context": (column, row, [0, 1, 2, 3]),
            "data": ([0, 1, 2, 3], None, [0, 1, 2, 3]),
            "one copy": (None, [0, 1, 2, 3], None),
        }
        assert result["other axes"] == (row, None, row)


def test_the_first_rank_of_a_copy_leads_it(ranks: list[dict[str, Any]]) -> None:
    assert [rank["leads"] for rank in ranks] == [
        [True, True, True, True],
        [False, False, True, False],
        [True, True, True, False],
        [False, False, True, False],
    ]


def test_a_stages_sums_go_over_copies_not_over_the_world(ranks: list[dict[str, Any]]) -> None:
    for rank, result in enumerate(ranks):
        # ten to the number of the copy: 1 + 10, or 1 + 10 + 100 + 1000; and how many copies there are
        assert result["sum tensor"][0] == result["sum context"][0] == [11.0, 2.0]
        assert result["sum data"][0] == [1111.0, 4.0]
        assert result["sum one copy"] == ([1.0, 1.0], [1.0, 1.0], []), "one copy costs no collective"
        assert result["sum tensor"][1] == [10.0 ** (rank // 2), 1.0], "what was given is left alone"
        leads = ["all_reduce", "broadcast"] if rank % 2 == 0 else ["broadcast"]
        assert result["sum tensor"][2] == result["sum context"][2] == leads
        assert result["sum data"][2] == ["all_reduce"]


def test_all_ranks_of_a_copy_have_their_leaders_sum(ranks: list[dict[str, Any]]) -> None:
    assert [rank["leaders' sum"] for rank in ranks] == [[2.0]] * 4


def test_denominators_go_over_copies_and_norms_over_shards(ranks: list[dict[str, Any]]) -> None:
    for rank, result in enumerate(ranks):
        assert result["counts"] == {
            "tensor": [[0.0, 7.0], [1.0, 7.0]],
            "context": [[0.0, 7.0], [1.0, 7.0]],
            "data": [[0.0, 7.0], [1.0, 7.0], [2.0, 7.0], [3.0, 7.0]],
            "one copy": [[0.0, 7.0]],
        }
        # two elements of 1, 3, 5 and 7 on the four ranks that share out the weights where sequences are split
        over_all = np.sqrt(2 * (1 + 9 + 25 + 49))
        column = np.sqrt(2 * (1 + 25)) if rank % 2 == 0 else np.sqrt(2 * (9 + 49))
        # where matrices are split, what ranks have alike counts once, and each part of a matrix
        assert result["norms"] == pytest.approx((over_all, column, over_all))


def test_peers_hear_from_their_leader_what_it_alone_worked_for(ranks: list[dict[str, Any]]) -> None:
    for rank, result in enumerate(ranks):
        for (array, rest, worked), leader in zip(result["told"], [rank // 2 * 2, rank // 2 * 2, rank, 0], strict=True):
            assert array == [[leader, 0.1], [-1.0, leader + 0.5]]
            assert worked == (rank == leader)
            assert rest == (f"from {leader}" if worked else None)
        assert result["broadcasts"] == ["broadcast"] * 3, "a rank that is a copy of its own asks nobody"


def test_a_leader_that_fails_ends_its_peers_and_no_others(ranks: list[dict[str, Any]]) -> None:
    assert [rank["failure"] for rank in ranks] == [
        "BadData: reward raised",
        "PeerLost: rank 0, which works for the copy of rank 1, failed; its log says why",
        "fine",
        "fine",
    ]
    assert [rank["after"] for rank in ranks] == [rank["told"][0] for rank in ranks]


def test_copies_exchange_what_they_have_for_each_other(ranks: list[dict[str, Any]]) -> None:
    for rank, result in enumerate(ranks):
        assert result["exchanged"] == [[[10 * source + rank]] * rank for source in range(4)]


def test_a_rank_alone_needs_no_torch_distributed() -> None:
    mesh = alone(CPU)
    values = torch.ones(2)
    assert mesh.is_leader and mesh.group("dp") is None and mesh.group(*COPY) is None
    assert mesh.sum(values) is values
    assert mesh.from_leader((1,), lambda: (np.ones(1), "rest")) == (np.ones(1), "rest")
    assert list(build_meshes([Mesh(), Mesh()], 0, CPU, deadline_seconds=1)) == [Mesh()]
    assert build_meshes([], 0, CPU, deadline_seconds=1) == {}


def test_a_mesh_is_as_large_as_the_world() -> None:
    with pytest.raises(AssertionError, match="a mesh of 4 ranks in a world of 1"):
        build_meshes([TENSOR], 0, CPU, deadline_seconds=1)


def test_a_leader_says_as_much_as_its_peers_expect(tmp_path: Path) -> None:
    assert run_ranks(2, say_too_much, tmp_path) == ["an array of (3,) in place of (2,)", "PeerLost"]


def say_too_much(rank: int) -> str:
    mesh = build_meshes([Mesh(tp=2)], rank, CPU, deadline_seconds=TEST_TIMEOUT_SECONDS)[Mesh(tp=2)]
    try:
        mesh.from_leader((2,), lambda: (np.zeros(3), None))
    except (AssertionError, PeerLost) as error:
        return str(error) if rank == 0 else type(error).__name__
    return "fine"


def test_a_copy_hears_the_least_and_the_largest_that_its_ranks_say(ranks: list[dict[str, Any]]) -> None:
    """Ranks say 2**40 - 2 to 2**40 + 1; in copies of two and of two, alone, and all four in one."""
    said = [
        [(low + (1 << 40), high + (1 << 40)) for low, high in result]
        for result in (
            [(-2, -1), (-2, -1), (-2, -2), (-2, 1)],
            [(-2, -1), (-2, -1), (-1, -1), (-2, 1)],
            [(0, 1), (0, 1), (0, 0), (-2, 1)],
            [(0, 1), (0, 1), (1, 1), (-2, 1)],
        )
    ]
    assert [rank["ranges"] for rank in ranks] == said
