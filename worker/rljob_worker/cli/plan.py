"""`rljob plan`: what would run where, and what would cross between."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from rljob_api.loading.load import parse_job
from rljob_api.memory.phases import GroupMemory
from rljob_api.picture.graph_svg import render_svg
from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.advice import warnings_of
from rljob_api.planning.fitting import Fit, fit
from rljob_api.planning.memory import PARTS
from rljob_api.planning.plan import EnginePlan, Plan, StagePlan
from rljob_api.planning.planner import plan as plan_of
from rljob_api.planning.traffic import Traffic, expected_bytes
from rljob_api.planning.weights import WeightFlow, slot_bytes, weight_flows
from rljob_api.vocabulary.quantity import format_bytes
from rljob_worker.cli.jobfile import read_text
from rljob_worker.errors import StorageError
from rljob_worker.local.model_shapes import shapes_of

PLAIN_WIDTH = 160
"""Of tables in a file or a pipe."""


def show_plan(path: Path, overrides: Sequence[str], svg: Path | None, *, as_json: bool, fits: bool) -> int:
    """Print the plan of a job, or of one that fits; files that the job names need not be here."""
    job = parse_job(read_text(path), overrides)
    shapes = shapes_of(job, path.absolute().parent)
    if fits:
        found = fit(job, shapes)
        job = found.job
        _say(found)
    plan = plan_of(job, shapes=shapes)
    if svg is not None:
        _write(svg, render_svg(plan))
    if as_json:
        click.echo(json.dumps(plan.to_json(), indent=1))
        return 0
    console = Console(highlight=False) if sys.stdout.isatty() else Console(width=PLAIN_WIDTH, highlight=False)
    print_plan(plan, console)
    for sentence in warnings_of(plan):
        click.echo(f"warning: {sentence}", err=True)
    if svg is not None:
        click.echo(f"drew {svg}", err=True)
    return 0


def _say(found: Fit) -> None:
    """What to set, beside what is printed for others to read."""
    if not found.changes:
        click.echo("the job fits as it is", err=True)
        return
    click.echo("the job fits with", err=True)
    for path, value in found.changes.items():
        click.echo(f"  {path}: {str(value).lower()}", err=True)
    click.echo("that is  " + " ".join(f"--set {each}" for each in found.overrides), err=True)


def print_plan(plan: Plan, console: Console) -> None:
    """Groups, stages, engines, edges, weights."""
    spec = plan.spec
    rows = f"{spec.data.batch_size} prompts x {spec.algorithm.group_size} responses = {spec.num_rows} rows"
    console.print(
        f"[bold]{plan.job}[/bold]: {spec.algorithm.name}, {rows} and {spec.num_optimizer_steps} optimizer "
        f"step{'s' if spec.num_optimizer_steps > 1 else ''} per step, {spec.stop.steps} steps",
        soft_wrap=True,
    )
    for table in (
        _groups(plan),
        _stages(plan),
        _engines(plan),
        _edges(plan),
        _weights(plan),
        *map(_memory, plan.memory),
    ):
        console.print()
        console.print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, header_style="dim", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _groups(plan: Plan) -> Table:
    table = _table("Worker groups", "group", "pods", "workers", "ranks", "device", "backend", "schedule")
    for group in plan.groups:
        lead = " (lead: rank 0)" if group.name == plan.lead_group else ""
        ranks = "0" if group.num_workers == 1 else f"0-{group.num_workers - 1}"
        workers = f"{group.replicas} x {group.workers_per_host}"
        table.add_row(
            group.name + lead, str(group.replicas), workers, ranks, group.device, group.backend,
            ", ".join(group.schedule),
        )  # fmt: skip
    return table


def _stages(plan: Plan) -> Table:
    table = _table("Stages", "stage", "runs", "group", "mesh", "after", "reads", "writes", "balance")
    for stage in plan.stages:
        table.add_row(
            stage.name, _runs(stage), stage.group, mesh_text(stage.mesh), _listed(stage.after),
            _listed(stage.reads), _listed(stage.writes), stage.balance,
        )  # fmt: skip
    return table


def _runs(stage: StagePlan) -> str:
    return f"{stage.run} on {', '.join(stage.models)}" if stage.models else stage.run


def _engines(plan: Plan) -> Table:
    table = _table("Engines", "engine", "library", "model", "group", "mesh", "trained")
    for engine in plan.engines:
        table.add_row(*_engine_cells(engine))
    return table


def _engine_cells(engine: EnginePlan) -> tuple[str, ...]:
    model = f"{engine.model} ({engine.path})"
    trained = "yes" if engine.trainable else ""
    if engine.adapter is not None:
        trained = f"adapter of rank {engine.adapter.rank}"
    if engine.base_of is not None:
        model += f": {engine.base_of} with its adapter off"
    return engine.name, engine.library, model, engine.group, mesh_text(engine.mesh), trained


def _edges(plan: Plan) -> Table:
    table = _table("Edges", "edge", "transport", "columns", "bytes per step", "at most")
    traffic = expected_bytes(plan)
    for edge in plan.edges:
        table.add_row(
            edge.name, edge.transport, _listed(edge.columns), *_byte_cells(traffic[edge.name], edge.transport)
        )
    total, worst = (sum(getattr(each, name) for each in traffic.values()) for name in ("typical", "worst"))
    table.add_row("all", "", "", f"about {format_bytes(total)}", format_bytes(worst))
    return table


def _byte_cells(traffic: Traffic, transport: str) -> tuple[str, str]:
    if transport == "Local":
        return "none", "none"
    return f"about {format_bytes(traffic.typical)}", format_bytes(traffic.worst)


def _weights(plan: Plan) -> Table:
    table = _table("Weights", "edge", "from", "to", "transport", "senders", "of dataBuffer.memory")
    flows = {flow.name: flow for flow in weight_flows(plan)}
    for weight in plan.weights:
        cells = _flow_cells(plan, flows[weight.name]) if weight.name in flows else ("–", "none")
        table.add_row(weight.name, weight.source, weight.target, weight.transport, *cells)
    return table


def _memory(memory: GroupMemory) -> Table:
    """Of one worker, the parts that it has. Parts that are most at different times add up to more than the peak."""
    table = _table(f"Memory of a worker of {memory.group}", "", *(phase.phase for phase in memory.phases))
    if memory.unknown:
        table.add_row(f"unknown: no config.json at hand of {', '.join(memory.unknown)}")
        return table
    for part in (*PARTS, "peak"):
        sizes = [getattr(phase, part) for phase in memory.phases]
        if any(sizes):
            table.add_row(part, *map(_bytes_or_none, sizes))
    return table


def _bytes_or_none(count: int) -> str:
    return format_bytes(count) if count else "–"


def _flow_cells(plan: Plan, flow: WeightFlow) -> tuple[str, str]:
    """Who sends, and what the slots take on the host that has most of them."""
    senders = f"{len(flow.source_ranks)} of {flow.source.num_workers} workers"
    slot = slot_bytes(plan)
    if flow.transport != "DataBuffer" or slot is None:
        return senders, "none"
    num_slots = max(flow.num_slots(group.name) for group in plan.groups)
    return senders, f"{format_bytes(num_slots * slot)} ({num_slots} x {format_bytes(slot)})"


def mesh_text(mesh: Mesh) -> str:
    """Axes longer than one, `dp=4 tp=2`; a single rank is `1 rank`."""
    axes = [f"{name}={size}" for name in ("dp", "tp", "pp", "cp", "ep") if (size := getattr(mesh, name)) > 1]
    return " ".join(axes) or "1 rank"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "–"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
