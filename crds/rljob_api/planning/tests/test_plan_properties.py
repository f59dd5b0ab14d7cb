"""Tests of properties that every plan has."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.planning.planner import plan
from rljob_api.tests.builders import TWO_GROUPS, make_job
from rljob_api.v1alpha1 import RLJob, StageSpec


@st.composite
def pipelines(draw):
    """The GRPO pipeline with the user's stages hung into it at random, each reading from what is upstream."""
    stages = [
        StageSpec(name="rollout", run="Rollout"),
        StageSpec(name="reward", run="Reward", after=("rollout",)),
        StageSpec(name="reference", run="LogProbs", models=("reference",), after=("rollout",)),
        StageSpec(name="advantage", run="Advantage", after=("reward",)),
        StageSpec(name="update", run="UpdatePolicy", after=("advantage", "reference"), balance="Tokens"),
    ]
    sources = {"rollout": ["response_ids"], "reward": ["rewards"]}
    for i in range(draw(st.integers(0, 6))):
        after = draw(st.lists(st.sampled_from(sorted(sources)), min_size=1, max_size=3, unique=True))
        reads = tuple(column for name in after for column in sources[name] if draw(st.booleans()))
        stages.append(StageSpec(name=f"mine{i}", run="m:f", after=tuple(after), reads=reads, writes=(f"column{i}",)))
        sources[f"mine{i}"] = [f"column{i}"]
    return draw(st.permutations(stages))


@settings(max_examples=30)
@given(pipelines(), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.booleans())
def test_properties_of_every_plan(stages, replicas, count, is_split):
    job = make_job(*(TWO_GROUPS if is_split else ()))
    groups = [
        group.model_copy(
            update={"replicas": replicas, "accelerator": group.accelerator.model_copy(update={"count": count})}
        )
        for group in job.spec.worker_groups
    ]
    dag_spec = {"stages": [stage.model_dump(by_alias=True) for stage in stages]}
    spec = {**job.spec.to_json(), "dag": dag_spec, "workerGroups": [group.to_json() for group in groups]}
    result = plan(RLJob.model_validate({**job.to_json(), "spec": spec}))

    scheduled = [name for group in result.groups for name in group.schedule]
    assert sorted(scheduled) == sorted(stage.name for stage in stages)
    order = [stage.name for stage in result.stages]
    for group in result.groups:
        assert list(group.schedule) == [name for name in order if result.stage(name).group == group.name]
    for edge in result.edges:
        producer, consumer = result.stage(edge.producer), result.stage(edge.consumer)
        assert order.index(edge.producer) < order.index(edge.consumer)
        assert set(edge.columns) <= set(producer.writes) & set(consumer.reads)
        is_local = producer.group == consumer.group and {producer.balance, consumer.balance} == {"None"}
        if producer.scatters_rows and producer.mesh.dp > 1:
            is_local = is_local and consumer.scatters_rows
        assert (edge.transport == "Local") == is_local
    for stage in result.stages:
        columns = [column for edge in result.inputs(stage.name) for column in edge.columns]
        assert sorted(columns) == sorted(stage.reads)
        assert set(stage.after) <= {edge.producer for edge in result.inputs(stage.name)}
        assert stage.mesh.size == result.group(stage.group).num_workers
        if stage.scatters_rows:
            assert stage.group not in {engine.group for engine in result.engines if engine.trainable}
            assert result.is_leased(stage) or [edge.transport for edge in result.inputs(stage.name)] == ["Local"]
    assert result.hash() == plan(RLJob.model_validate({**job.to_json(), "spec": spec})).hash()
