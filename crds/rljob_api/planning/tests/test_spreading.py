from dataclasses import replace

import pytest

from rljob_api.memory.model_shape import parse_shape
from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning import planner
from rljob_api.planning.spreading import context_sizes, spreading_problems
from rljob_api.tests.builders import make_job
from rljob_api.vocabulary.problem import InvalidJobError

CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
}
SHAPE = parse_shape(CONFIG)
assert SHAPE is not None


@pytest.mark.parametrize(
    ("heads", "key_heads", "sizes"),
    [
        (12, 4, (1, 2, 4, 12)),  # 3 and 6 divide the heads, and would cut a key head: 4 / 3, 6 / 4
        (6, 3, (1, 3, 6)),
        (8, 8, (1, 2, 4, 8)),
        (8, 1, (1, 2, 4, 8)),
        (7, 1, (1, 7)),
    ],
)
def test_workers_share_whole_heads(heads, key_heads, sizes):
    assert context_sizes(replace(SHAPE, heads=heads, key_heads=key_heads)) == sizes


def test_a_size_that_cuts_heads_is_refused_with_those_that_do_not():
    (found,) = spreading_problems("models/tiny", SHAPE, Mesh(dp=2, cp=3))
    assert found.path == "spec.training.parallelism.context"
    assert "12 attention heads and 4 key heads of models/tiny" in found.message
    assert found.fix == "Write one of 1, 2, 4, 12."
    assert list(spreading_problems("models/tiny", SHAPE, Mesh(dp=2, cp=4))) == []


def test_the_plan_refuses_each_model_once_where_its_config_is_at_hand():
    job = make_job("workerGroups=[{name: train, replicas: 3}]", "training.parallelism.context=3", "data.batchSize=6")
    paths = {model.path for model in job.spec.models}
    with pytest.raises(InvalidJobError) as refused:
        planner.plan(job, shapes=dict.fromkeys(paths, SHAPE))
    assert [each.path for each in refused.value.problems] == ["spec.training.parallelism.context"] * len(paths)
    assert planner.plan(job).engines
