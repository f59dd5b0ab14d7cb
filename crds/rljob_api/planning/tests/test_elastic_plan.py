"""Plans with an elastic group."""

from fractions import Fraction

from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.costs.timeline import StageTimes, timeline_of
from rljob_api.planning.plan import ElasticPlan
from rljob_api.tests.builders import make_plan

ELASTIC = (
    "workerGroups=[{name: train, replicas: 2}, {name: rollout, accelerator: {count: 2}, elastic: {min: 2, max: 4}}]",
    "rollout.maxStaleness=1",
    "rollout.engine=VLLM",
    "rollout.parallelism.tensor=2",
)


def test_guests_are_beside_the_gang():
    result = make_plan(*ELASTIC)
    assert [group.name for group in result.gang] == ["train"]
    assert result.elastic_group == result.group("rollout")
    assert (result.elastic_group.elastic, result.elastic_group.replicas) == (ElasticPlan(min=2, max=4), 4)
    assert result.num_workers == 2
    # guests are numbered after the gang, wherever their group stands
    assert [result.worker_offset(name) for name in ("train", "rollout")] == [0, 2]
    first = make_plan("workerGroups=[{name: rollout, elastic: {min: 1, max: 4}}, {name: train}]", *ELASTIC[1:2])
    assert [first.worker_offset(name) for name in ("train", "rollout")] == [0, 1]


def test_rows_of_guests_lie_on_all_workers_of_the_lead_group():
    result = make_plan(*ELASTIC)
    for name in ("rollout", "reward"):
        stage = result.stage(name)
        assert (stage.group, stage.generated_in, stage.mesh) == ("train", "rollout", Mesh(dp=2))
        assert not stage.scatters_rows and not result.is_leased(stage)
    assert {edge.name: edge.transport for edge in result.edges if edge.producer in ("rollout", "reward")} == {
        "rollout->reward": "Local",
        "rollout->reference": "Local",
        "rollout->advantage": "Local",
        "reward->advantage": "Local",
        "rollout->update": "Buffer",  # which balances tokens
    }
    assert result.group("rollout").schedule == ("rollout", "reward")
    assert result.group("train").schedule == ("rollout", "reference", "reward", "advantage", "update")


def test_rows_of_guests_lie_on_every_worker_of_a_trainer_that_splits_its_model():
    result = make_plan(
        "workerGroups=[{name: train, accelerator: {count: 4}}, {name: rollout, elastic: {min: 1, max: 2}}]",
        "rollout.maxStaleness=1",
        "training.parallelism.tensor=2",
    )
    assert result.stage("rollout").mesh == Mesh(dp=4)
    assert result.trainer_of("actor").mesh == Mesh(dp=2, tp=2)
    assert result.edge("rollout->reference").transport == "Buffer"


def test_the_engine_of_a_guest_is_within_one_pod():
    (engine,) = [engine for engine in make_plan(*ELASTIC).engines if engine.kind == "Rollout"]
    assert (engine.group, engine.mesh) == ("rollout", Mesh(dp=1, tp=2))
    (edge,) = make_plan(*ELASTIC).weights
    assert (edge.source, edge.target, edge.transport) == ("train/actor", "rollout/actor", "DataBuffer")


def test_how_many_generators_there_are_now_is_not_in_the_plan():
    hashes = {make_plan(*ELASTIC, *more).hash() for more in ((), ("generators=2",), ("generators=3",))}
    assert len(hashes) == 1
    assert make_plan(*ELASTIC, "generators=3").spec.generators is None


def test_guests_are_busy_with_what_the_lead_group_only_receives():
    times = StageTimes({"rollout": Fraction(6), "reward": Fraction(2), "update": Fraction(4)})
    timeline = timeline_of(make_plan(*ELASTIC), times)
    # with one step ahead guests generate 6 + 2 seconds of 8 while 4 are trained on
    assert timeline.seconds_per_step == 8
    assert timeline.idle == {"train": Fraction(1, 2), "rollout": 0}
