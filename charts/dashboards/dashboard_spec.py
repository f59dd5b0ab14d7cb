"""`Board`: a dashboard as plain values, before anything of Grafana."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Unit = Literal["short", "percentunit", "s", "bytes", "Bps", "reqps", "cps", "none"]

JOB = 'namespace=~"$namespace",rljob=~"$rljob"'
"""Selects the jobs that the board's variables name."""


OF_POLICY = "rljob, policy"
"""Labels of a curve that each policy of a job has; those of a job with one policy have no label `policy`."""


@dataclass(frozen=True)
class Query:
    """One PromQL expression and how its series are called."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """A graph over time."""

    title: str
    description: str
    unit: Unit
    queries: tuple[Query, ...]
    minimum: float | None = None
    maximum: float | None = None


@dataclass(frozen=True)
class PanelRow:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """A choice at the top of the board, filled by a query."""

    name: str
    label: str
    query: str


@dataclass(frozen=True)
class DashboardSpec:
    """A dashboard."""

    uid: str
    title: str
    description: str
    rows: tuple[PanelRow, ...]
    variables: tuple[Variable, ...] = field(
        default=(
            Variable("namespace", "Namespace", "label_values(rljob_step, namespace)"),
            Variable("rljob", "Job", 'label_values(rljob_step{namespace=~"$namespace"}, rljob)'),
        )
    )

    @property
    def panels(self) -> tuple[Panel, ...]:
        """The panels of all rows."""
        return tuple(panel for row in self.rows for panel in row.panels)


def gauge(
    title: str, description: str, metric: str, unit: Unit = "short", *, by: str = "", maximum: float | None = None
) -> Panel:
    """A metric that the lead worker reports, one line per job, or per job and `by`; of a job with several policies one
    for each of them."""
    labels = f"{OF_POLICY}, {by}" if by else OF_POLICY
    legend = f"{{{{rljob}}}} {{{{policy}}}} {{{{{by}}}}}" if by else "{{rljob}} {{policy}}"
    return Panel(title, description, unit, (Query(f"max by ({labels}) ({metric}{{{JOB}}})", legend),), maximum=maximum)


def rate(title: str, description: str, counter: str, unit: Unit, *, by: str) -> Panel:
    """What a counter of the data buffers grows by in a second, over all hosts of a job."""
    expr = f"sum by (rljob, {by}) (rate({counter}{{{JOB}}}[$__rate_interval]))"
    return Panel(title, description, unit, (Query(expr, f"{{{{rljob}}}} {{{{{by}}}}}"),), minimum=0)
