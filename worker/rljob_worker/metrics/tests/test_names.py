"""Names and labels of metrics for Prometheus."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.metrics.names import PrometheusName, prometheus_name


@pytest.mark.parametrize(
    ("name", "family", "labels"),
    [
        ("reward/mean", "rljob_reward_mean", ()),
        ("reward/correct", "rljob_reward_component_mean", (("reward", "correct"),)),
        ("reward/std", "rljob_reward_std", ()),
        ("update/gradient_norm", "rljob_gradient_norm", ()),
        ("data/get_bytes/rollout->reward", "rljob_edge_get_bytes", (("edge", "rollout->reward"),)),
        ("data/producer_seconds/weights/actor", "rljob_edge_producer_seconds", (("edge", "weights/actor"),)),
        ("time/rollout_seconds", "rljob_stage_seconds", (("stage", "rollout"),)),
        ("time/rollout_wait_seconds", "rljob_stage_wait_seconds", (("stage", "rollout"),)),
        ("time/step_seconds", "rljob_step_seconds", ()),
        ("time/weights_wait_seconds", "rljob_stage_wait_seconds", (("stage", "weights"),)),
        ("time/trainers_idle_seconds", "rljob_trainers_idle_seconds", ()),
        ("time/generators_idle_seconds", "rljob_generators_idle_seconds", ()),
        ("time/trainers_idle_fraction", "rljob_trainers_idle_ratio", ()),
        ("time/generators_idle_fraction", "rljob_generators_idle_ratio", ()),
        (
            "time/generators_idle_seconds/weights_room",
            "rljob_idle_cause_seconds",
            (("role", "generators"), ("cause", "weights_room")),
        ),
        ("rollout/groups_in_flight", "rljob_groups_in_flight", ()),
        ("partial/groups_unfinished", "rljob_unfinished_groups", ()),
        ("partial/rows_unfinished", "rljob_unfinished_rows", ()),
        ("partial/rows_cut_off", "rljob_carries_cut_off_rows", ()),
        ("conversation/failed_fraction", "rljob_conversations_failed_ratio", ()),
        ("conversation/failed_fraction/replay", "rljob_conversations_failed_cause_ratio", (("cause", "replay"),)),
        ("conversation/world/guesses", "rljob_conversation_figure_mean", (("figure", "guesses"),)),
        ("generators/tokens/rollout-1", "rljob_generator_tokens", (("generator", "rollout-1"),)),
        ("leases/given_again_total", "rljob_leases_given_again_total", ()),
        ("partial/age_mean", "rljob_rows_age_mean_steps", ()),
        ("partial/age_max", "rljob_rows_age_max_steps", ()),
        ("data/room_seconds/rollout->reward", "rljob_edge_room_seconds", (("edge", "rollout->reward"),)),
        ("data/bytes_rollout->reward", "rljob_edge_bytes", (("edge", "rollout->reward"),)),
        ("data/bytes_total", "rljob_data_plane_bytes", ()),
        ("mismatch/ratio_mean/age_1", "rljob_mismatch_age_ratio_mean", (("age", "1"),)),
        ("staleness/fraction/age_2", "rljob_staleness_age_ratio", (("age", "2"),)),
        ("mismatch/k3/age_17", "rljob_mismatch_age_k3_nats", (("age", "17"),)),
        ("validation/accuracy/gsm8k", "rljob_source_accuracy_ratio", (("source", "gsm8k"),)),
        ("training/accuracy/gsm8k", "rljob_source_training_accuracy_ratio", (("source", "gsm8k"),)),
        ("training/reward/gsm8k", "rljob_source_training_reward_mean", (("source", "gsm8k"),)),
        ("validation/pass@4", "rljob_validation_pass_ratio", (("k", "4"),)),
        ("validation/pass@4/gsm8k", "rljob_source_pass_ratio", (("k", "4"), ("source", "gsm8k"))),
        ("validation/maj@16", "rljob_validation_majority_ratio", (("k", "16"),)),
        ("validation/maj@16/gsm8k", "rljob_source_majority_ratio", (("k", "16"), ("source", "gsm8k"))),
        ("my/New-Thing", "rljob_my_new_thing", ()),
        ("policy/entropy", "rljob_policy_entropy_nats", ()),
        ("conversation/agent/solver/reward", "rljob_agent_reward_mean", (("agent", "solver"),)),
        ("policy/solver/policy/entropy", "rljob_policy_entropy_nats", (("policy", "solver"),)),
        (
            "policy/solver/training/reward/gsm8k",
            "rljob_source_training_reward_mean",
            (("policy", "solver"), ("source", "gsm8k")),
        ),
    ],
)
def test_names(name, family, labels):
    assert prometheus_name(name) == PrometheusName(family, labels)


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=1))
def test_every_name_is_legal(name):
    assert re.fullmatch(r"[a-z][a-z0-9_]*", prometheus_name(name).family)
