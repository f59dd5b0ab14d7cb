"""Tests of building a job in Python."""

import pytest
import yaml
from pydantic import ValidationError

from rljob_api import Pipeline
from rljob_api.loading.document import read_document
from rljob_api.planning.planner import plan
from rljob_api.tests.builders import dag, make_job, make_plan
from rljob_api.v1alpha1 import DagSpec, RLJob

MINE = (
    Pipeline("mine")
    .stage("rollout", run="Rollout")
    .stage("reward", run="Reward", after=["rollout"])
    .stage("reference", run="LogProbs", models=["reference"], after=["rollout"])
    .stage(
        "score", run="my.module:score", after=["reward"], reads=["rewards"], writes=["total"], options={"scale": 2.0}
    )
    .stage("advantage", run="Advantage", after=["score"], rename={"rewards": "total"})
    .stage("update", run="UpdatePolicy", after=["advantage", "reference"], balance="Tokens")
)

YAML = dag(
    "name: rollout, run: Rollout",
    "name: reward, run: Reward, after: [rollout]",
    "name: reference, run: LogProbs, models: [reference], after: [rollout]",
    "name: score, run: 'my.module:score', after: [reward], reads: [rewards], writes: [total], options: {scale: 2.0}",
    "name: advantage, run: Advantage, after: [score], rename: {rewards: total}",
    "name: update, run: UpdatePolicy, after: [advantage, reference], balance: Tokens",
)


def test_python_and_yaml_make_the_same_plan():
    job = make_job()
    built = RLJob(api_version=job.api_version, kind=job.kind, metadata=job.metadata, spec=MINE.into(job.spec))
    assert built == make_job(YAML)
    assert plan(built).hash() == make_plan(YAML).hash()


def test_a_pipeline_prints_as_the_dag_of_a_job():
    text = MINE.to_yaml()
    assert "balance: None" not in text
    assert DagSpec.model_validate(read_document(text).value["dag"]) == MINE.build()
    assert yaml.safe_load(text) == read_document(text).value


def test_a_pipeline_is_never_changed():
    base = Pipeline("mine").stage("rollout", run="Rollout")
    base.stage("reward", run="Reward", after=["rollout"])
    assert [stage.name for stage in base.stages] == ["rollout"]


def test_an_empty_pipeline_is_none():
    with pytest.raises(ValidationError):
        Pipeline("mine").build()
