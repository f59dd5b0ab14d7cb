"""The meshes of a plan as people see them: what each axis divides, whom a rank meets along it, and what lies on which
host. Pure.

    train-0  [(0-1) (2-3)] [(4-5) (6-7)]         dp=4 cp=2 tp=2 on hosts of eight: two copies of the model each, a copy
    train-1  [(8-9) (10-11)] [(12-13) (14-15)]   of two runs of tokens, a run of two ranks that share every layer

    train-0  {[0-1] [2-3]}                       dp=4 rp=2 tp=2 on hosts of four: the weights once on each host, where
    train-1  {[4-5] [6-7]}                       two copies share them out
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rljob_api.pipeline.meshes import AxisCost, Mesh
from rljob_api.planning.plan import GroupPlan, Plan
from rljob_api.vocabulary.quantity import format_bytes
from rljob_worker.cli.plan.sheet import NOTHING, Sheet
from rljob_worker.engines.parallel.mesh_ranks import Axis, ranks_over

DIVIDES: dict[Axis, str] = {
    "dp": "rows",
    "rp": "nothing, adds up gradients",
    "pp": "depth",
    "cp": "sequences",
    "tp": "every layer",
    "ep": "experts",
}
"""By axis, the slowest first."""

WAYS = {"Heads": "sequences, heads in attention", "Ring": "sequences, keys in a ring"}
"""What `cp` divides, where that is known."""

MAX_NAMED = 4
"""Ranks, and hosts at either end, that are written out."""


def mesh_text(mesh: Mesh) -> str:
    """Axes longer than one, `dp=4 tp=2`; a single rank is `1 rank`."""
    return " ".join(f"{name}={size}" for name, size in _axes(mesh).items()) or "1 rank"


def mesh_sheets(plan: Plan) -> Iterator[Sheet]:
    """Axes and hosts of every mesh that engines have."""
    engines: dict[tuple[str, Mesh], list[str]] = {}
    for engine in plan.engines:
        engines.setdefault((engine.group, engine.mesh), []).append(engine.name)
    for (group, mesh), names in engines.items():
        if axes := tuple(_axes(mesh)):
            known = next((item.axes for item in plan.meshes if (item.group, item.mesh) == (group, mesh)), ())
            costs: dict[Axis, AxisCost] = {item.axis: item for item in known}
            shown = len(_HEADERS) if "pp" in costs else 6 if costs else 4
            rows = tuple(_axis_cells(mesh, axis, costs.get(axis))[:shown] for axis in axes)
            yield Sheet(f"Mesh of {', '.join(names)}: {mesh_text(mesh)}", _HEADERS[:shown], rows)
            hosts = tuple(_hosts(mesh, plan.group(group), plan.job))
            yield Sheet(f"Its ranks on hosts, {_legend(mesh)}", (), hosts)


_HEADERS = ("axis", "ranks", "divides", "rank 0 meets", "a worker sends per step", "memory without it", "it waits")


def _axis_cells(mesh: Mesh, axis: Axis, cost: AxisCost | None) -> tuple[str, ...]:
    divides = DIVIDES[axis] if cost is None or cost.way is None else WAYS[cost.way]
    cells = (axis, str(getattr(mesh, axis)), divides, _meeting(mesh, axis))
    if cost is None:
        return *cells, NOTHING, NOTHING, NOTHING
    sent = format_bytes(cost.sent) + (", between hosts" if cost.crosses_hosts else "")
    without = NOTHING if cost.without is None else format_bytes(cost.without)
    return *cells, sent, without, NOTHING if cost.waits is None else f"{cost.waits / (1 + cost.waits):.0%} of its time"


def _axes(mesh: Mesh) -> dict[Axis, int]:
    return {axis: size for axis in DIVIDES if (size := getattr(mesh, axis)) > 1}


def _meeting(mesh: Mesh, axis: Axis) -> str:
    """The copies that shard weights among them; all do where there are no replicas."""
    if axis == "dp" and mesh.rp > 1:
        return f"{_named(ranks_over(mesh, 0, ('sp',)))} in its replica"
    return _named(ranks_over(mesh, 0, (axis,)))


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) <= 2 * MAX_NAMED:
        return " ".join(map(str, ranks))
    return " ".join([*map(str, ranks[:MAX_NAMED]), "…", str(ranks[-1])])


def _innermost(mesh: Mesh) -> Axis:
    """The axis whose ranks are numbered in a row."""
    return next((axis for axis in _FASTEST_FIRST if getattr(mesh, axis) > 1), "tp")


_FASTEST_FIRST: tuple[Axis, ...] = ("tp", "cp", "pp")


def _legend(mesh: Mesh) -> str:
    inner = _innermost(mesh)
    copy = "a replica in { }, a copy of the model in [ ]" if mesh.rp > 1 else "a copy of the model in [ ]"
    return copy if mesh.ranks_per_copy == getattr(mesh, inner) else f"{copy}, {inner} in ( )"


def _hosts(mesh: Mesh, group: GroupPlan, job: str) -> Iterator[tuple[str, str]]:
    """A line per host, of many the first and the last."""
    hosts: Sequence[int] = range(group.replicas)
    left_out = len(hosts) - 2 * MAX_NAMED
    for host in hosts:
        if left_out > 1 and MAX_NAMED <= host < group.replicas - MAX_NAMED:
            if host == MAX_NAMED:
                yield "…", f"{left_out:,} hosts"
            continue
        first = host * group.workers_per_host
        yield f"{job}-{group.name}-{host}", " ".join(_runs(mesh, first, first + group.workers_per_host))


def _runs(mesh: Mesh, first: int, end: int) -> Iterator[str]:
    """The ranks of a host in runs along the innermost axis; a bracket stands where a copy, or a replica, begins or
    ends."""
    inner = getattr(mesh, _innermost(mesh))
    start = first
    while start < end:
        stop = min(end, (start // inner + 1) * inner)
        text = f"{start}-{stop - 1}" if stop - start > 1 else str(start)
        if mesh.ranks_per_copy > inner:
            text = f"({text})"
        yield _bracketed(mesh, start, text, stop)
        start = stop


def _bracketed(mesh: Mesh, start: int, text: str, stop: int) -> str:
    spans = [(mesh.ranks_per_copy, "[", "]"), *([(mesh.ranks_per_replica, "{", "}")] if mesh.rp > 1 else [])]
    for size, opens, closes in spans:
        text = (opens if start % size == 0 else "") + text + (closes if stop % size == 0 else "")
    return text
