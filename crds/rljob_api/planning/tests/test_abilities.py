"""Tests of settings that need a model with experts, or one without."""

import pytest

from rljob_api.memory.model_shape import parse_shape
from rljob_api.planning.model_problems import ability_problems, model_problems
from rljob_api.planning.tests.configs import DENSE, EXPERTS
from rljob_api.tests.builders import PPO, TWO_GROUPS, make_plan


def problems(config, *overrides):
    plan = make_plan(*overrides)
    return list(ability_problems(plan, {engine.path: parse_shape(config) for engine in plan.engines}))


@pytest.mark.parametrize(
    ("path", "value", "result", "fits"),
    [
        ("models[0].adapter", "{rank: 4}", '{"rank": 4}', DENSE),
        ("training.compile", "true", "true", DENSE),
        ("training.routerAuxLossCoefficient", "0.01", "0.01", DENSE | EXPERTS),
    ],
)
def test_what_asks_for_experts_or_for_none(path, value, result, fits):
    override = f"{path.replace('[0]', '.0')}={value}"
    other = DENSE | EXPERTS if fits is DENSE else DENSE
    assert problems(fits, override) == []
    # several engines have the model, and are one problem
    (messages,) = problems(other, override)
    assert (messages.path, messages.found) == (f"spec.{path}", result)
    assert messages.fix == ("Write false." if path == "training.compile" else "Leave it out.")


@pytest.mark.parametrize("override", ["rollout.engineOptions.enforceEager=true", "training.routerAuxLossCoefficient=0"])
def test_what_asks_for_nothing_is_of_any_model(override):
    assert problems(DENSE | EXPERTS, override) == problems(DENSE, override) == []


def test_steps_that_are_recorded_are_of_models_without_experts():
    recorded = "rollout.engineOptions.enforceEager=false"
    on_devices = "workerGroups=[{name: train, accelerator: {profile: nvidia, count: 1}}]"
    assert problems(DENSE, recorded, on_devices) == []
    (result,) = problems(DENSE | EXPERTS, recorded, on_devices)
    assert (result.path, result.found, result.fix) == (
        "spec.rollout.engineOptions.enforceEager",
        "false",
        "Leave it out.",
    )
    assert problems(DENSE | EXPERTS, recorded, on_devices, "rollout.engine=VLLM") == []


def test_a_critic_without_experts_is_no_policy_without_experts():
    """The policy has experts; the critic, a model of its own, has none."""
    plan = make_plan(*PPO, "training.routerAuxLossCoefficient=0.1", "models.1={name: critic, path: dense}")
    shapes = {engine.path: parse_shape(DENSE | (EXPERTS if engine.path != "dense" else {})) for engine in plan.engines}
    assert "dense" in shapes and list(ability_problems(plan, shapes)) == []


def test_stop_tokens_are_of_the_model():
    # 128 tokens are 0 to 127
    assert problems(DENSE, *TWO_GROUPS, "rollout.stopTokenIds=[5, 127]") == []
    (result,) = problems(DENSE, *TWO_GROUPS, "rollout.stopTokenIds=[5, 128]")
    assert result.path == "spec.rollout.stopTokenIds[1]" and "are 0 to 127" in result.message
    assert result.fix == "Write one of them, or leave it out."


def test_nothing_is_asked_of_models_that_are_not_known():
    assert list(ability_problems(make_plan("training.routerAuxLossCoefficient=0.01"), {})) == []


def test_versions_that_exist_at_once_must_fit_where_they_are_sent_from():
    plan = make_plan(*TWO_GROUPS)
    shapes = {engine.path: parse_shape(DENSE | {"vocab_size": 200_000}) for engine in plan.engines}

    def result(memory, staleness, shapes):
        buffer = plan.spec.data_buffer.model_copy(update={"memory": memory})
        rollout = plan.spec.rollout.model_copy(update={"max_staleness": staleness})
        spec = plan.spec.model_copy(update={"data_buffer": buffer, "rollout": rollout})
        messages = model_problems(plan.model_copy(update={"spec": spec}), shapes)
        return [message for message in messages if message.path == "spec.dataBuffer.memory"]

    # 98 MiB in slots of 4 MiB: 25 for each of four versions
    assert result("1Gi", 0, shapes) == result("1Gi", 1, {}) == []
    (messages,) = result("1Gi", 1, shapes)
    assert "with rollout.maxStaleness 1 up to 4 versions of" in messages.message
    assert "are kept: 400.0 MiB on a host of group train, where weights have 128.0 MiB" in messages.message
    assert "Set dataBuffer.memory to at least 4Gi" in messages.fix
    assert result("4Gi", 1, shapes) == []


ELASTIC_GROUPS = (
    "workerGroups=[{name: train, replicas: 2}, {name: rollout, elastic: {min: 1, max: 4}}]",
    "rollout.maxStaleness=1",
)


def test_a_pod_of_an_elastic_group_has_room_for_two_versions():
    plan = make_plan(*ELASTIC_GROUPS)
    shapes = {engine.path: parse_shape(DENSE | {"vocab_size": 2_000_000}) for engine in plan.engines}

    def result(memory):
        buffer = plan.spec.data_buffer.model_copy(update={"memory": memory})
        made = plan.model_copy(update={"spec": plan.spec.model_copy(update={"data_buffer": buffer})})
        messages = model_problems(made, shapes)
        return [message for message in messages if message.path == "spec.dataBuffer.memory"]

    # 977 MiB of 2 sources, each half of it and a bucket of 64 MiB: 553 MiB in 70 slots of 8 MiB, two versions
    messages = [message for message in result("2Gi") if "elastic" in message.message]
    assert [message.message for message in messages] == [
        f"a pod of elastic group rollout holds 2 versions of {plan.engines[0].path}: 2.2 GiB, and weights have half of "
        "its data buffer, 1.0 GiB"
    ]
    assert messages[0].fix == "Set dataBuffer.memory to at least 5Gi."
    assert not [message for message in result("5Gi") if "elastic" in message.message]
