"""Meshes as people see them."""

from rljob_api.memory.model_shape import parse_shape
from rljob_api.memory.tests.test_model_shape import QWEN3_8B
from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.planner import plan
from rljob_api.tests.builders import make_job, make_plan
from rljob_worker.cli.plan.meshes import mesh_sheets, mesh_text

TOGETHER = "workerGroups=[{name: train, replicas: %d, accelerator: {profile: nvidia-h100, count: %d}}]"


def drawn(replicas, count, *overrides):
    """The sheets of the engines that train."""
    plan = make_plan(TOGETHER % (replicas, count), "data.batchSize=4096", *overrides)
    result = list(mesh_sheets(plan))
    at = next(i for i, sheet in enumerate(result) if "train/actor" in sheet.title)
    return result[at], result[at + 1]


def test_axes_are_reported_the_slowest_first_and_those_of_one_rank_not_at_all():
    assert mesh_text(Mesh(dp=4, tp=2)) == "dp=4 tp=2"
    assert mesh_text(Mesh(dp=2, tp=4, cp=2)) == "dp=2 cp=2 tp=4"
    assert mesh_text(Mesh()) == "1 rank"


def test_whom_a_rank_meets_and_which_ranks_are_on_which_host():
    axes, hosts = drawn(2, 8, "training.parallelism={tensor: 2, context: 2}")
    assert axes.title == "Mesh of reference, train/actor: dp=4 cp=2 tp=2"
    assert axes.rows == (
        ("dp", "4", "rows", "0 4 8 12"),
        ("cp", "2", "sequences", "0 2"),
        ("tp", "2", "every layer", "0 1"),
    )
    assert hosts.title == "Its ranks on hosts, a copy of the model in [ ], tp in ( )"
    assert hosts.rows == (
        ("small-train-0", "[(0-1) (2-3)] [(4-5) (6-7)]"),
        ("small-train-1", "[(8-9) (10-11)] [(12-13) (14-15)]"),
    )


def test_replicas_lie_across_hosts_and_weights_are_shared_out_in_each():
    axes, hosts = drawn(2, 8, "training.parallelism={tensor: 2, replicate: 2}")
    assert axes.title == "Mesh of reference, train/actor: dp=8 rp=2 tp=2"
    assert axes.rows == (
        ("dp", "8", "rows", "0 2 4 6 in its replica"),
        ("rp", "2", "nothing, adds up gradients", "0 8"),
        ("tp", "2", "every layer", "0 1"),
    )
    assert hosts.title == "Its ranks on hosts, a replica in { }, a copy of the model in [ ]"
    assert hosts.rows == (
        ("small-train-0", "{[0-1] [2-3] [4-5] [6-7]}"),
        ("small-train-1", "{[8-9] [10-11] [12-13] [14-15]}"),
    )
    _, hosts = drawn(4, 2, "training.parallelism={context: 4, replicate: 2}")
    assert [line for _, line in hosts.rows] == ["{[0-1", "2-3]}", "{[4-5", "6-7]}"]


def test_stages_are_reported_with_the_time_that_they_wait():
    staged = ("training.engine=Megatron", "training.parallelism={pipeline: 2}")
    job = make_job(TOGETHER % (2, 8), "data.batchSize=16", *staged)
    made = plan(job, shapes={"models/tiny": parse_shape(QWEN3_8B)})
    axes = next(sheet for sheet in mesh_sheets(made) if "train/actor" in sheet.title)
    assert axes.headers[-1] == "it waits"
    dp, pp = axes.rows
    # one micro-batch on two stages
    assert (dp[-1], pp[:4], pp[-1]) == ("–", ("pp", "2", "depth", "0 1"), "50% of its time")


def test_a_copy_may_lie_on_two_hosts():
    axes, hosts = drawn(2, 4, "training.parallelism={tensor: 8}")
    assert axes.rows == (("tp", "8", "every layer", "0 1 2 3 4 5 6 7"),)
    assert hosts.rows == (("small-train-0", "[0-3"), ("small-train-1", "4-7]"))


def test_rows_alone_are_divided():
    axes, hosts = drawn(2, 2)
    assert axes.rows == (("dp", "4", "rows", "0 1 2 3"),)
    assert hosts.rows == (("small-train-0", "[0] [1]"), ("small-train-1", "[2] [3]"))


def test_of_a_thousand_hosts_the_first_and_the_last_are_drawn():
    axes, hosts = drawn(1024, 8, "training.parallelism={tensor: 8, context: 2}", "data.batchSize=8192")
    assert axes.rows[0] == ("dp", "512", "rows", "0 16 32 48 … 8176")
    assert len(hosts.rows) == 9
    assert hosts.rows[0] == ("small-train-0", "[(0-7)")
    assert hosts.rows[1] == ("small-train-1", "(8-15)]")
    assert hosts.rows[4] == ("…", "1,016 hosts")
    assert hosts.rows[-1] == ("small-train-1023", "(8184-8191)]")


def test_one_rank_has_no_mesh():
    assert list(mesh_sheets(make_plan())) == []
