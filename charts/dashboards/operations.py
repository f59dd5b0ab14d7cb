"""Is the operator keeping up, and how are the jobs?"""

from __future__ import annotations

from charts.dashboards.dashboard_spec import DashboardSpec, Panel, PanelRow, Query, Unit, Variable

_NAMESPACE = 'namespace=~"$namespace"'


def _panel(title: str, description: str, unit: Unit, *queries: tuple[str, str]) -> Panel:
    return Panel(title, description, unit, tuple(Query(expr, legend) for expr, legend in queries), minimum=0)


def _quantiles(title: str, description: str, histogram: str, by: str = "") -> Panel:
    """Median and 95th percentile of a histogram over five minutes."""
    labels = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    return _panel(
        title,
        description,
        "s",
        *(
            (f"histogram_quantile({q}, sum by ({labels}) (rate({histogram}_bucket[5m])))", f"{name}{legend}")
            for q, name in ((0.5, "median"), (0.95, "95 %"))
        ),
    )


_JOBS = PanelRow(
    "Jobs",
    (
        _panel(
            "Jobs by phase",
            "Every RLJob counts once.",
            "short",
            (f"count by (phase) (rljob_info{{{_NAMESPACE}}})", "{{phase}}"),
        ),
        _panel(
            "Restarts",
            "Attempts that followed a failed one, in the last hour; counted ones use up maxRestarts.",
            "short",
            (f"sum by (counted) (increase(rljob_restarts_total{{{_NAMESPACE}}}[1h]))", "counted={{counted}}"),
        ),
        _panel(
            "Failures",
            "Attempts of any job that failed in the last hour, by cause.",
            "short",
            ("sum by (reason) (increase(rljob_failures_total[1h]))", "{{reason}}"),
        ),
        _panel(
            "Since the last finished step",
            "How long each running job has stood still.",
            "s",
            (f"time() - rljob_last_progress_timestamp_seconds{{{_NAMESPACE}}}", "{{namespace}}/{{rljob}}"),
        ),
        _panel(
            "Generators",
            "Pods of elastic groups: how many are wanted, and ready.",
            "short",
            (f"rljob_generators_wanted{{{_NAMESPACE}}}", "{{namespace}}/{{rljob}} wanted"),
            (f"rljob_generators_ready{{{_NAMESPACE}}}", "{{namespace}}/{{rljob}} ready"),
        ),
        _panel(
            "Lost generators",
            "Pods of elastic groups that ended before their attempt, in the last hour.",
            "short",
            (f"increase(rljob_generators_lost_total{{{_NAMESPACE}}}[1h])", "{{namespace}}/{{rljob}}"),
        ),
        _quantiles("Until all pods are ready", "From the creation of an attempt's pods.", "rljob_ready_seconds"),
    ),
)

_OPERATOR = PanelRow(
    "Operator",
    (
        _quantiles("Reconcile", "One pass over one job.", "rljob_operator_reconcile_seconds"),
        _panel("Queue", "Jobs that wait for a pass.", "short", ("max(rljob_operator_queue_depth)", "depth")),
        _panel(
            "Oldest in the queue",
            "Seconds that the first of them has waited.",
            "s",
            ("max(rljob_operator_queue_oldest_seconds)", "oldest"),
        ),
        _panel(
            "API requests",
            "By verb and answer.",
            "reqps",
            ("sum by (verb, code) (rate(rljob_operator_api_requests_total[5m]))", "{{verb}} {{code}}"),
        ),
        _panel(
            "Silence of watches",
            "Since the last event of each watch; bookmarks count.",
            "s",
            ("time() - max by (resource) (rljob_operator_watch_last_event_timestamp_seconds)", "{{resource}}"),
        ),
        _panel(
            "Leaders",
            "Exactly one, except for seconds after a failure.",
            "short",
            ("sum(rljob_operator_leader)", "leaders"),
        ),
        _panel(
            "Event loop lag",
            "Above a second, the operator is short of CPU.",
            "s",
            ("max(rljob_operator_loop_lag_seconds)", "lag"),
        ),
        _panel(
            "Exceptions",
            "Of each part of the operator, in the last hour; it goes on after them, and the log names the job.",
            "short",
            ("sum by (part) (increase(rljob_operator_part_failures_total[1h]))", "{{part}}"),
        ),
        _panel(
            "Memory",
            "Resident memory of the operator.",
            "bytes",
            ("process_resident_memory_bytes and on (instance, pod) rljob_operator_leader", "{{instance}}"),
        ),
    ),
)

OPERATIONS = DashboardSpec(
    "rljob-operator",
    "rljob / operator",
    "Jobs by phase, restarts, and the operator itself.",
    (_JOBS, _OPERATOR),
    variables=(Variable("namespace", "Namespace", "label_values(rljob_info, namespace)"),),
)
