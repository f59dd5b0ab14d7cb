"""Who computes activations again, and who decides it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.catalogue.profiles import DEFAULT
from rljob_api.memory.model_shape import parse_shape
from rljob_api.memory.tests.test_model_shape import QWEN3_8B
from rljob_api.planning.advice import warnings_of
from rljob_api.planning.memory.limits import limits_of
from rljob_api.planning.memory.tests.test_workers import gpus
from rljob_api.planning.memory.workers import memory_of
from rljob_api.planning.planner import plan, with_recomputing
from rljob_api.tests.builders import TWO_GROUPS, make_job
from rljob_api.vocabulary.problem import InvalidJobError

SHAPES = {"models/tiny": parse_shape(QWEN3_8B)}
AUTO = "training.memory.activationCheckpointing=Auto"
SMALL = ("data.batchSize=32", "dataBuffer.memory=16Gi")
LONG = ("data.maxPromptTokens=32000", "training.tokensPerMicroBatch=32768")


def planned(*overrides, shapes=SHAPES):
    return plan(make_job(*SMALL, *overrides), shapes=shapes)


def recomputing(result):
    return [engine.name for engine in result.engines if engine.recomputes]


def test_what_a_job_asks_for_is_what_it_gets():
    assert recomputing(planned(gpus(4))) == []
    assert recomputing(planned(gpus(4), "training.memory.activationCheckpointing=Full")) == ["train/actor"]


def test_auto_computes_again_only_what_has_no_room():
    assert recomputing(planned(gpus(4), AUTO)) == []
    result = planned(gpus(4), AUTO, *LONG)
    assert recomputing(result) == ["train/actor"]  # and not the reference, which has no backward pass
    assert result.memory == planned(gpus(4), "training.memory.activationCheckpointing=Full", *LONG).memory
    with pytest.raises(InvalidJobError, match="activationCheckpointing: Auto"):
        planned(gpus(4), "training.memory.activationCheckpointing=None", *LONG)


def test_auto_computes_again_where_nobody_knows_whether_there_is_room():
    unknown = planned(gpus(4), AUTO, shapes={})
    assert recomputing(unknown) == ["train/actor"]
    (warning,) = [warning for warning in warnings_of(unknown) if "activationCheckpointing" in warning]
    assert "nobody knows here how large models/tiny is: workers of train see it in its config.json" in warning
    sizeless = DEFAULT | {"nvidia-h100": DEFAULT["nvidia-h100"].model_copy(update={"memory": None})}
    assert recomputing(plan(make_job(*SMALL, gpus(4), AUTO), sizeless, SHAPES)) == ["train/actor"]


def test_a_worker_on_cpus_that_nobody_limits_has_room():
    assert recomputing(planned(AUTO)) == recomputing(planned(AUTO, shapes={})) == []
    assert not [warning for warning in warnings_of(planned(AUTO, shapes={})) if "activationCheckpointing" in warning]


def test_the_decision_is_one_of_each_group():
    few = "{spec: {containers: [{name: worker, resources: {limits: {memory: 250Gi}}}]}}"
    # a worker that trains the policy needs 342 GiB, 170 when it computes again; one that trains the critic 26
    policy, critic = (f"{{name: {name}, template: {few}}}" for name in ("policy", "critic"))
    assert recomputing(planned(*TWO_GROUPS, AUTO)) == []
    dag = [
        "{name: rollout, run: Rollout, group: policy}",
        "{name: reward, run: Reward, after: [rollout]}",
        "{name: values, run: Values, models: [critic], after: [rollout], group: critic}",
        "{name: reference, run: LogProbs, models: [reference], after: [rollout], group: policy}",
        "{name: advantage, run: Advantage, after: [reward, values]}",
        "{name: learn, run: UpdateCritic, models: [critic], after: [advantage], group: critic}",
        "{name: update, run: UpdatePolicy, models: [actor], after: [advantage, reference], group: policy}",
    ]
    result = planned(
        f"workerGroups=[{policy}, {critic}]", "algorithm={name: PPO}", f"dag={{stages: [{', '.join(dag)}]}}", AUTO,
        "models=[{name: actor, path: models/tiny}, {name: critic, path: models/small}]", "data.maxPromptTokens=8000",
        shapes=SHAPES | {"models/small": parse_shape(QWEN3_8B | {"num_hidden_layers": 2})},
    )  # fmt: skip
    assert recomputing(result) == ["train/actor"]


@given(st.sampled_from([1, 2, 4]), st.sampled_from([1024, 8192, 32768]), st.sampled_from(["None", "Full"]))
def test_auto_is_none_where_that_fits_and_else_full(replicas, tokens, other):
    """Whatever the job: never more memory than without a decision, never time without need."""
    job = make_job(*SMALL, gpus(replicas), AUTO, f"training.tokensPerMicroBatch={tokens}")
    asked = make_job(*SMALL, gpus(replicas), f"training.tokensPerMicroBatch={tokens}",
                     f"training.memory.activationCheckpointing={other}")  # fmt: skip
    drawn = plan(job)
    limits = limits_of(drawn)
    decided = memory_of(with_recomputing(drawn, SHAPES, limits), SHAPES, limits)
    written = memory_of(plan(asked), SHAPES, limits)
    kept, again = (max(phase.peak for phase in item[0].phases) for item in (decided, written))
    if other == "Full":
        assert kept >= again
    else:
        assert kept <= again
        if again <= limits["train"].usable:
            assert kept == again
