"""Who meets whom, in meshes small enough to write down."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.engines.parallel.mesh_ranks import COPY, EVERYONE, LAYERS, SHARDS, STAGE, TOKENS, meetings, ranks_over

EIGHT = Mesh(dp=2, tp=2, cp=2)
AXES = ("dp", "rp", "tp", "pp", "cp", "ep", "edp")


@pytest.mark.parametrize(
    ("axes", "together"),
    [
        (("dp",), [(0, 4), (1, 5), (2, 6), (3, 7)]),
        (("cp",), [(0, 2), (1, 3), (4, 6), (5, 7)]),
        (("tp",), [(0, 1), (2, 3), (4, 5), (6, 7)]),
        (("pp",), [(0,), (1,), (2,), (3,), (4,), (5,), (6,), (7,)]),
        (COPY, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (SHARDS, [(0, 2, 4, 6), (1, 3, 5, 7)]),
    ],
)
def test_the_eight_ranks_of_the_example(axes, together):
    assert sorted({ranks_over(EIGHT, rank, axes) for rank in range(8)}) == together


@pytest.mark.parametrize(
    ("mesh", "axes", "together"),
    [
        (Mesh(dp=2, tp=2), ("dp",), [(0, 2), (1, 3)]),
        (Mesh(dp=2, tp=2), COPY, [(0, 1), (2, 3)]),
        (Mesh(dp=2, cp=2), ("dp",), [(0, 2), (1, 3)]),
        (Mesh(dp=2, cp=2), SHARDS, [(0, 1, 2, 3)]),
        (Mesh(dp=4), COPY, [(0,), (1,), (2,), (3,)]),
        # the stages of a pipeline are farther from each other than the ranks of a tensor or of a sequence
        (Mesh(tp=2, pp=2), ("pp",), [(0, 2), (1, 3)]),
        (Mesh(cp=2, pp=2), ("pp",), [(0, 2), (1, 3)]),
        # experts: within a pipeline stage, in runs
        (Mesh(dp=4, ep=2), ("ep",), [(0, 1), (2, 3)]),
        (Mesh(dp=2, tp=2, ep=4), ("ep",), [(0, 1, 2, 3)]),
        (Mesh(dp=2, pp=2, tp=2, ep=2), ("ep",), [(0, 1), (2, 3), (4, 5), (6, 7)]),
        (Mesh(dp=2, pp=2, tp=2, ep=4), ("ep",), [(0, 1, 4, 5), (2, 3, 6, 7)]),
        (Mesh(dp=2, cp=2, ep=4), ("ep",), [(0, 1, 2, 3)]),
        (Mesh(dp=2), ("ep",), [(0,), (1,)]),
        (Mesh(dp=4, ep=2), ("edp",), [(0, 2), (1, 3)]),
        (Mesh(dp=2, tp=2, ep=4), ("edp",), [(0,), (1,), (2,), (3,)]),
        (Mesh(dp=2, pp=2, tp=2, ep=2), ("edp",), [(0, 4), (1, 5), (2, 6), (3, 7)]),
        # replicas: runs of neighbours, whatever is inside
        (Mesh(dp=4, rp=2), SHARDS, [(0, 1), (2, 3)]),
        (Mesh(dp=4, rp=2), ("rp",), [(0, 2), (1, 3)]),
        (Mesh(dp=4, rp=2), ("dp",), [(0, 1, 2, 3)]),
        (Mesh(dp=4, rp=4), SHARDS, [(0,), (1,), (2,), (3,)]),
        (Mesh(dp=4, tp=2, rp=2), ("sp",), [(0, 2), (1, 3), (4, 6), (5, 7)]),
        (Mesh(dp=4, tp=2, rp=2), ("rp",), [(0, 4), (1, 5), (2, 6), (3, 7)]),
        (Mesh(dp=4, tp=2, rp=2), LAYERS, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (Mesh(dp=4, tp=2, rp=2), STAGE, [(0, 1, 2, 3, 4, 5, 6, 7)]),
        (Mesh(dp=2, cp=2, pp=2, rp=2), SHARDS, [(0, 1), (2, 3), (4, 5), (6, 7)]),
        (Mesh(dp=2, cp=2, pp=2, rp=2), ("rp",), [(0, 4), (1, 5), (2, 6), (3, 7)]),
        (Mesh(dp=8, ep=2, rp=2), ("ep",), [(0, 1), (2, 3), (4, 5), (6, 7)]),
        (Mesh(dp=8, ep=2, rp=2), ("edp",), [(0, 2), (1, 3), (4, 6), (5, 7)]),
    ],
)
def test_meshes_of_other_shapes(mesh, axes, together):
    assert sorted({ranks_over(mesh, rank, axes) for rank in range(mesh.size)}) == together


def test_experts_that_do_not_divide_a_stage_are_a_mistake_of_ours():
    with pytest.raises(AssertionError, match="3 ranks per expert do not divide the 4 of a pipeline stage"):
        ranks_over(Mesh(dp=2, pp=2, tp=2, ep=3), 0, ("ep",))


def test_copies_that_do_not_divide_into_replicas_are_a_mistake_of_ours():
    with pytest.raises(AssertionError, match="3 replicas do not divide the 4 copies"):
        ranks_over(Mesh(dp=4, rp=3), 0, SHARDS)


meshes = st.builds(Mesh, dp=st.integers(1, 3), tp=st.integers(1, 3), pp=st.integers(1, 3), cp=st.integers(1, 3))


@given(meshes, st.data())
def test_those_who_meet_agree_on_who_they_are(mesh, data):
    rank = data.draw(st.integers(0, mesh.size - 1))
    for axes, ranks in meetings(mesh, rank):
        assert rank in ranks and list(ranks) == sorted(set(ranks))
        assert all(ranks_over(mesh, other, axes) == ranks for other in ranks)


@given(meshes, st.data())
def test_replicas_have_the_ranks_that_the_plan_takes_them_for(mesh, data):
    replicas = data.draw(st.integers(1, 3))
    mesh = mesh.model_copy(update={"dp": mesh.dp * replicas, "rp": replicas})
    rank = data.draw(st.integers(0, mesh.size - 1))
    assert len(ranks_over(mesh, rank, SHARDS)) == mesh.shards
    of_replica = ranks_over(mesh, rank, ("sp", "pp", "cp", "tp"))
    first = rank // mesh.ranks_per_replica * mesh.ranks_per_replica
    assert of_replica == tuple(range(first, first + mesh.ranks_per_replica))
    assert {other - rank for other in ranks_over(mesh, rank, ("rp",))} == {
        (number - rank // mesh.ranks_per_replica) * mesh.ranks_per_replica for number in range(replicas)
    }


@given(meshes, st.data())
def test_a_copy_is_what_the_plan_takes_for_one(mesh, data):
    rank = data.draw(st.integers(0, mesh.size - 1))
    copy = ranks_over(mesh, rank, COPY)
    assert len(copy) == mesh.ranks_per_copy
    assert {mesh.dp_rank(other) for other in copy} == {mesh.dp_rank(rank)}
    assert [other for other in copy if mesh.is_row_leader(other)] == [copy[0]]


def test_every_rank_meets_along_the_same_axes_in_the_same_order():
    assert [axes for axes, _ in meetings(EIGHT, 0)] == [axes for axes, _ in meetings(EIGHT, 7)]
    assert {frozenset(axes) for axes, _ in meetings(EIGHT, 0)} == {
        frozenset(axes) for axes in (EVERYONE, COPY, TOKENS, SHARDS, LAYERS, STAGE, *((axis,) for axis in AXES))
    }
