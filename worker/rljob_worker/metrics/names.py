"""Metric names as they are written to files, and as Prometheus spells them.

Files use paths (`time/rollout_seconds`); Prometheus uses `rljob_<thing>_<unit>` with few, bounded labels: what varies
with the job's own names (stage, edge, reward, source) becomes a label, never a name.
"""

import re
from dataclasses import dataclass

from rljob_worker.metrics.by_policy import label_and_name

_UNITS = {
    "reward/mean": "rljob_reward_mean",
    "reward/std": "rljob_reward_std",
    "reward/max": "rljob_reward_max",
    "reward/baseline": "rljob_reward_baseline_mean",
    "reward/timeouts_total": "rljob_reward_timeouts",
    "reward/zero_variance_groups": "rljob_reward_zero_variance_groups",
    "loss/policy": "rljob_policy_loss",
    "loss/value": "rljob_value_loss",
    "kl/reference": "rljob_kl_reference_nats",
    "kl/old": "rljob_kl_old_nats",
    "mismatch/k1": "rljob_mismatch_k1_nats",
    "mismatch/k3": "rljob_mismatch_k3_nats",
    "staleness/mean": "rljob_staleness_mean_versions",
    "staleness/max": "rljob_staleness_max_versions",
    "policy/entropy": "rljob_policy_entropy_nats",
    "policy/clip_fraction": "rljob_policy_clip_ratio",
    "update/gradient_norm": "rljob_gradient_norm",
    "update/learning_rate": "rljob_learning_rate",
    "response_length/mean": "rljob_response_length_mean_tokens",
    "response_length/max": "rljob_response_length_max_tokens",
    "throughput/tokens_per_second": "rljob_tokens_per_second",
    "rollout/groups_in_flight": "rljob_groups_in_flight",
    "partial/groups_unfinished": "rljob_unfinished_groups",
    "partial/rows_unfinished": "rljob_unfinished_rows",
    "partial/rows_cut_off": "rljob_carries_cut_off_rows",
    "partial/age_mean": "rljob_rows_age_mean_steps",
    "partial/age_max": "rljob_rows_age_max_steps",
    "conversation/turns_mean": "rljob_conversation_turns_mean",
    "conversation/failed_fraction": "rljob_conversations_failed_ratio",
    "conversation/world_tokens": "rljob_conversation_world_tokens",
    "simulator/success": "rljob_simulator_success_ratio",
    "simulator/success_at_end": "rljob_simulator_success_at_end_ratio",
    "simulator/finish_step": "rljob_simulator_finish_mean_steps",
    "validation/success": "rljob_validation_success_ratio",
    "validation/success_standard_error": "rljob_validation_success_standard_error_ratio",
    "time/step_seconds": "rljob_step_seconds",
    "time/trainers_idle_seconds": "rljob_trainers_idle_seconds",
    "time/trainers_idle_fraction": "rljob_trainers_idle_ratio",
    "time/generators_idle_seconds": "rljob_generators_idle_seconds",
    "time/generators_idle_fraction": "rljob_generators_idle_ratio",
    "health/warnings": "rljob_health_warnings",
    "data/bytes_total": "rljob_data_plane_bytes",
    "validation/accuracy": "rljob_validation_accuracy_ratio",
}

_EDGE_MEASURES = (
    "get_bytes", "get_rows", "get_seconds", "put_rows", "put_seconds", "producer_seconds", "transfer_seconds",
    "room_seconds",
)  # fmt: skip

# first match wins: the wait of a stage before the time of a stage
_FAMILIES = [
    (re.compile(r"time/(?P<stage>.+)_wait_seconds"), "rljob_stage_wait_seconds"),
    (re.compile(r"time/(?P<stage>.+)_seconds"), "rljob_stage_seconds"),
    (re.compile(r"time/(?P<role>trainers|generators)_idle_seconds/(?P<cause>.+)"), "rljob_idle_cause_seconds"),
    (re.compile(r"data/bytes_(?P<edge>.+)"), "rljob_edge_bytes"),
    *((re.compile(rf"data/{measure}/(?P<edge>.+)"), f"rljob_edge_{measure}") for measure in _EDGE_MEASURES),
    (re.compile(r"mismatch/ratio_mean/age_(?P<age>\d+)"), "rljob_mismatch_age_ratio_mean"),
    (re.compile(r"staleness/fraction/age_(?P<age>\d+)"), "rljob_staleness_age_ratio"),
    (re.compile(r"mismatch/k3/age_(?P<age>\d+)"), "rljob_mismatch_age_k3_nats"),
    (re.compile(r"conversation/failed_fraction/(?P<cause>.+)"), "rljob_conversations_failed_cause_ratio"),
    (re.compile(r"generators/tokens/(?P<generator>.+)"), "rljob_generator_tokens"),
    (re.compile(r"conversation/world/(?P<figure>.+)"), "rljob_conversation_figure_mean"),
    (re.compile(r"conversation/agent/(?P<agent>[^/]+)/turns"), "rljob_agent_turns_mean"),
    (re.compile(r"conversation/agent/(?P<agent>[^/]+)/response_length"), "rljob_agent_response_length_mean_tokens"),
    (re.compile(r"conversation/agent/(?P<agent>[^/]+)/reward"), "rljob_agent_reward_mean"),
    (re.compile(r"simulator/success/(?P<task>.+)"), "rljob_simulator_task_success_ratio"),
    (re.compile(r"simulator/success_at_end/(?P<task>.+)"), "rljob_simulator_task_success_at_end_ratio"),
    (re.compile(r"validation/success/(?P<task>.+)"), "rljob_validation_task_success_ratio"),
    (re.compile(r"validation/success_standard_error/(?P<task>.+)"), "rljob_validation_task_standard_error_ratio"),
    (re.compile(r"validation/accuracy/(?P<source>.+)"), "rljob_source_accuracy_ratio"),
    (re.compile(r"training/accuracy/(?P<source>.+)"), "rljob_source_training_accuracy_ratio"),
    (re.compile(r"training/reward/(?P<source>.+)"), "rljob_source_training_reward_mean"),
    (re.compile(r"validation/pass@(?P<k>\d+)"), "rljob_validation_pass_ratio"),
    (re.compile(r"validation/pass@(?P<k>\d+)/(?P<source>.+)"), "rljob_source_pass_ratio"),
    (re.compile(r"validation/maj@(?P<k>\d+)"), "rljob_validation_majority_ratio"),
    (re.compile(r"validation/maj@(?P<k>\d+)/(?P<source>.+)"), "rljob_source_majority_ratio"),
    (re.compile(r"reward/(?P<reward>[^/]+)/timeouts_total"), "rljob_reward_component_timeouts"),
    (re.compile(r"reward/(?P<reward>[^/]+)/errors_total"), "rljob_reward_component_errors"),
    (re.compile(r"reward/(?P<reward>[^/]+)/retries_total"), "rljob_reward_component_retries"),
    (re.compile(r"reward/(?P<reward>.+)"), "rljob_reward_component_mean"),
    (re.compile(r"service/(?P<service>[^/]+)/seconds"), "rljob_service_seconds"),
    (re.compile(r"service/(?P<service>[^/]+)/queue_seconds"), "rljob_service_queue_seconds"),
    (re.compile(r"service/(?P<service>[^/]+)/requests_total"), "rljob_service_requests"),
    (re.compile(r"service/(?P<service>[^/]+)/errors_total"), "rljob_service_errors"),
]


@dataclass(frozen=True, slots=True)
class PrometheusName:
    """A metric's family and the labels that its own name carries."""

    family: str
    labels: tuple[tuple[str, str], ...] = ()


def prometheus_name(name: str) -> PrometheusName:
    """How Prometheus spells `name`: `time/rollout_seconds` is `rljob_stage_seconds{stage="rollout"}`."""
    policy, bare = label_and_name(name)
    if policy is not None:
        spelt = prometheus_name(bare)
        return PrometheusName(spelt.family, (("policy", policy), *spelt.labels))
    if name in _UNITS:
        return PrometheusName(_UNITS[name])
    for pattern, family in _FAMILIES:
        match = pattern.fullmatch(name)
        if match:
            return PrometheusName(family, tuple(match.groupdict().items()))
    return PrometheusName("rljob_" + re.sub(r"[^a-zA-Z0-9]+", "_", name).strip("_").lower())
