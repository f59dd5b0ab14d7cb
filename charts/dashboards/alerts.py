"""What a platform engineer wants to be woken for, as Prometheus rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Alert:
    """A condition that has to hold for a while."""

    name: str
    expr: str
    hold: str
    """How long, as Prometheus spells it: `5m`."""
    severity: Literal["warning", "critical"]
    summary: str
    description: str

    def to_rule(self) -> dict[str, Any]:
        """As an entry of a rule group."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.hold,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.summary, "description": self.description},
        }


ALERTS = (
    Alert(
        "RLJobStalled",
        '(time() - rljob_last_progress_timestamp_seconds > 1800) and on (namespace, rljob) rljob_info{phase="Running"}',
        "5m",
        "warning",
        "{{ $labels.namespace }}/{{ $labels.rljob }} has finished no step for half an hour",
        "Workers stand still, or the lead worker does not answer. `kubectl describe rlj` names who waits.",
    ),
    Alert(
        "RLJobRestarting",
        "sum by (namespace, rljob) (increase(rljob_restarts_total[1h])) > 3",
        "0m",
        "warning",
        "{{ $labels.namespace }}/{{ $labels.rljob }} has restarted more than three times in an hour",
        "status.lastFailure holds pod, exit code and last words of the last failure.",
    ),
    Alert(
        "RLJobFailed",
        'rljob_info{phase="Failed"} == 1',
        "0m",
        "warning",
        "{{ $labels.namespace }}/{{ $labels.rljob }} has failed",
        "The condition Failed says why.",
    ),
    Alert(
        "RLJobQueueSlow",
        "max(rljob_operator_queue_oldest_seconds) > 300",
        "5m",
        "critical",
        "Jobs wait more than five minutes for the operator",
        "The API server throttles it, or it is short of CPU: compare request codes and event loop lag.",
    ),
    Alert(
        "RLJobNoLeader",
        "(sum(rljob_operator_leader) or vector(0)) < 1",
        "2m",
        "critical",
        "No operator leads",
        "Nothing starts, restarts or ends while nobody leads; running pods go on.",
    ),
    Alert(
        "RLJobWatchStale",
        "time() - max by (resource) (rljob_operator_watch_last_event_timestamp_seconds) > 900",
        "5m",
        "critical",
        "The operator has heard nothing of {{ $labels.resource }} for 15 minutes",
        "Its liveness probe restarts it when the API server answers but the watch does not.",
    ),
    Alert(
        "RLJobOperatorFaulty",
        "sum by (part) (increase(rljob_operator_part_failures_total[30m])) > 3",
        "10m",
        "warning",
        "Part {{ $labels.part }} of the operator has met more than three exceptions in half an hour",
        "It goes on after each; the log has a traceback, and names the job where one job is the cause.",
    ),
    Alert(
        "RLJobDataBufferNearlyFull",
        "max by (namespace, rljob) ("
        "(rljob_buffer_resident_bytes{of='rows'} + ignoring(of) rljob_buffer_spill_used_bytes) / "
        "(rljob_buffer_capacity_bytes{of='rows'} + ignoring(of) rljob_buffer_spill_limit_bytes)) > 0.9",
        "10m",
        "warning",
        "A data buffer of {{ $labels.namespace }}/{{ $labels.rljob }} is nine tenths full",
        "Producers wait once it is full: raise dataBuffer.memory, or dataBuffer.spill.limit.",
    ),
)


def rule_groups() -> list[dict[str, Any]]:
    """The `groups` of a PrometheusRule."""
    return [{"name": "rljob", "rules": [alert.to_rule() for alert in ALERTS]}]
