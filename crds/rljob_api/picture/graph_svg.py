"""`render_svg(plan)`: a picture of the DAG.  Plain SVG text; any browser shows it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rljob_api.picture.graph_layout import GraphLayout, lay_out
from rljob_api.picture.svg import INK, Point, clip, curve, label, marker, text, wrap
from rljob_api.pipeline.dag import Graph
from rljob_api.planning.costs.traffic import expected_bytes
from rljob_api.planning.plan import EdgePlan, Plan, StagePlan, WeightEdge
from rljob_api.vocabulary.quantity import format_bytes

BOX_WIDTH, BOX_HEIGHT = 176, 62
GAP_X, PITCH_Y = 168, 104
MARGIN, HEADER, FOOTER = 32, 64, 52

# Fill and border of each worker group's boxes; readable in grey as well.
PALETTE = (
    ("#dbeafe", "#2563eb"),
    ("#dcfce7", "#16a34a"),
    ("#fef3c7", "#d97706"),
    ("#fce7f3", "#db2777"),
    ("#ede9fe", "#7c3aed"),
    ("#cffafe", "#0891b2"),
    ("#fee2e2", "#dc2626"),
    ("#ecfccb", "#65a30d"),
)
GREY, DARK_GREY, LOCAL, BUFFER, WEIGHTS = "#475569", "#334155", "#94a3b8", INK, "#9333ea"


def render_svg(plan: Plan) -> str:
    """The plan's stages as boxes from left to right, coloured by worker group; edges with columns and transport."""
    picture = _Picture(plan)
    body = [*picture.edges(), *picture.weights(), *picture.boxes(), *picture.header(), *picture.legend()]
    width, height = picture.size
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="system-ui, Helvetica, Arial, sans-serif">',
            marker("local", LOCAL),
            marker("buffer", BUFFER),
            marker("weights", WEIGHTS),
            f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
            *body,
            "</svg>\n",
        ]
    )


class _Picture:
    """Grid positions turned into points, and points into SVG elements."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.traffic = expected_bytes(plan)
        graph = Graph({stage.name: [e.producer for e in plan.inputs(stage.name)] for stage in plan.stages})
        self.layout: GraphLayout = lay_out(graph, [(edge.producer, edge.consumer) for edge in plan.edges])
        places = [place for route in self.layout.routes.values() for place in route]
        places += self.layout.positions.values()
        self.top = min(row for _, row in places)
        num_columns = max(column for column, _ in places) + 1
        num_rows = max(row for _, row in places) - self.top + 1
        self.bottom = HEADER + MARGIN + num_rows * PITCH_Y
        arcs = 34 * len(plan.weights)
        legend = 2 * MARGIN + 150 * len(plan.groups) + 420
        self.size = (
            max(2 * MARGIN + num_columns * BOX_WIDTH + (num_columns - 1) * GAP_X, legend),
            self.bottom + arcs + FOOTER,
        )
        self.colours = {group.name: PALETTE[i % len(PALETTE)] for i, group in enumerate(plan.groups)}

    def point(self, place: tuple[int, float]) -> Point:
        """Centre of a place in the grid."""
        column, row = place
        x = MARGIN + column * (BOX_WIDTH + GAP_X) + BOX_WIDTH / 2
        return x, HEADER + MARGIN + (row - self.top) * PITCH_Y + PITCH_Y / 2

    def boxes(self) -> list[str]:
        return [self._box(stage) for stage in self.plan.stages]

    def _box(self, stage: StagePlan) -> str:
        x, y = self.point(self.layout.positions[stage.name])
        home = stage.generated_in or stage.group
        fill, border = self.colours[home]
        left, top = x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2
        models = f" · {', '.join(stage.models)}" if stage.models else ""
        layout = " ".join(f"{axis} {size}" for axis, size in _axes(stage))
        balance = f" · by {stage.balance.lower()}" if stage.balance != "None" else ""
        return "\n".join(
            [
                f"<g><title>{escape(_tooltip(stage))}</title>",
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="10" '
                f'fill="{fill}" stroke="{border}" stroke-width="1.5"/>',
                text(x, top + 22, stage.name, size=14, weight=600),
                text(x, top + 38, clip(f"{stage.run}{models}", 28), size=11, colour=GREY),
                text(x, top + 53, f"{home} · {layout}{balance}", size=10, colour=border),
                "</g>",
            ]
        )

    def edges(self) -> list[str]:
        """All lines, then all labels, so that no line runs over a label."""
        routes = [(edge, self._route(edge)) for edge in self.plan.edges]
        return [self._line(*route) for route in routes] + [self._columns(*route) for route in routes]

    def _line(self, edge: EdgePlan, points: Sequence[Point]) -> str:
        colour, width = (LOCAL, 1.4) if edge.transport == "Local" else (BUFFER, 2.0)
        kind, worst = edge.transport.lower(), self.traffic[edge.name].worst
        note = ", ".join(edge.columns) or "no columns, only order"
        size = f", up to {format_bytes(worst)} a step" if worst else ""
        dashes = "" if edge.columns else ' stroke-dasharray="3 4"'
        return (
            f'<path d="{curve(points, BOX_WIDTH)}" fill="none" stroke="{colour}" stroke-width="{width}" '
            f'marker-end="url(#{kind})"{dashes}>'
            f"<title>{escape(f'{edge.name}: {note} ({kind}{size})')}</title></path>"
        )

    def _columns(self, edge: EdgePlan, points: Sequence[Point]) -> str:
        """The label, in the gap before the consumer, where lines to one box are still apart."""
        (x0, y0), (x1, y1) = points[-2:]
        x0 += BOX_WIDTH / 2 if len(points) > 2 else 0
        colour = DARK_GREY if edge.transport == "Local" else BUFFER
        return label(x0 + 0.58 * (x1 - x0), y0 + 0.65 * (y1 - y0), wrap(edge.columns), colour)

    def _route(self, edge: EdgePlan) -> list[Point]:
        """The points of an edge; edges that share a side of a box leave and enter it one below the other."""
        ends = edge.producer, edge.consumer
        points = [self.point(place) for place in self.layout.routes[ends]]
        outgoing = sorted((route[1][1], key) for key, route in self.layout.routes.items() if key[0] == ends[0])
        entering = sorted((route[-2][1], key) for key, route in self.layout.routes.items() if key[1] == ends[1])
        (x0, y0), (x1, y1) = points[0], points[-1]
        points[0] = x0 + BOX_WIDTH / 2, y0 + _port([key for _, key in outgoing], ends)
        points[-1] = x1 - BOX_WIDTH / 2 - 6, y1 + _port([key for _, key in entering], ends)
        return points

    def weights(self) -> list[str]:
        return [self._weight_edge(edge, i) for i, edge in enumerate(self.plan.weights)]

    def _weight_edge(self, edge: WeightEdge, index: int) -> str:
        """From the stage that updates the model back to the one that generates with it, below everything else."""
        source = next(s for s in self.plan.stages if edge.source in s.engines and s.run.startswith("Update"))
        target = next(s for s in self.plan.stages if edge.target in s.engines)
        (x0, y0), (x1, y1) = (self.point(self.layout.positions[stage.name]) for stage in (source, target))
        y0, y1, floor = y0 + BOX_HEIGHT / 2, y1 + BOX_HEIGHT / 2 + 6, self.bottom + 34 * index
        turn = 14
        path = (
            f"M {x0:.1f} {y0:.1f} V {floor - turn:.1f} Q {x0:.1f} {floor:.1f} {x0 - turn:.1f} {floor:.1f} "
            f"H {x1 + turn:.1f} Q {x1:.1f} {floor:.1f} {x1:.1f} {floor - turn:.1f} V {y1:.1f}"
        )
        title = f"{edge.name}: {edge.source} to {edge.target} ({edge.transport})"
        return "\n".join(
            [
                f"<g><title>{escape(title)}</title>",
                f'<path d="{path}" fill="none" stroke="{WEIGHTS}" stroke-width="1.8" stroke-dasharray="7 4" '
                'marker-end="url(#weights)"/>',
                label((x0 + x1) / 2, floor, [f"{edge.name} · {edge.transport}"], WEIGHTS),
                "</g>",
            ]
        )

    def header(self) -> list[str]:
        spec, plan = self.plan.spec, self.plan
        facts = (
            f"{spec.algorithm.name} · {spec.num_rows} rows a step ({spec.data.batch_size} prompts x "
            f"{spec.algorithm.group_size}) · {plan.num_workers} worker{'s' if plan.num_workers > 1 else ''}"
        )
        return [
            text(MARGIN, 34, plan.job, size=20, weight=700, anchor="start"),
            text(MARGIN, 54, facts, size=12, colour=GREY, anchor="start"),
        ]

    def legend(self) -> list[str]:
        y, x, parts = self.size[1] - 24, float(MARGIN), []
        for group in self.plan.groups:
            fill, border = self.colours[group.name]
            pods = f"{group.elastic.min}-{group.elastic.max}" if group.elastic is not None else str(group.replicas)
            label = f"{group.name}: {pods} x {group.workers_per_host} {group.profile}"
            parts.append(
                f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="14" height="14" rx="4" fill="{fill}" stroke="{border}"/>'
            )
            parts.append(text(x + 20, y + 1, label, size=11, colour=GREY, anchor="start"))
            x += 44 + 6.2 * len(label)
        for label, colour, width in (("in the process", LOCAL, 1.4), ("through data buffers", BUFFER, 2.0)):
            parts.append(f'<path d="M {x:.1f} {y - 3:.1f} h 28" stroke="{colour}" stroke-width="{width}"/>')
            parts.append(text(x + 34, y + 1, label, size=11, colour=GREY, anchor="start"))
            x += 58 + 6.2 * len(label)
        return parts


def _port(edges: Sequence[tuple[str, str]], edge: tuple[str, str]) -> float:
    """How far from the middle of a box's side an edge touches it, given all edges of that side from top to bottom."""
    pitch = min(12.0, (BOX_HEIGHT - 16) / len(edges))
    return (edges.index(edge) - (len(edges) - 1) / 2) * pitch


def _axes(stage: StagePlan) -> list[tuple[str, int]]:
    mesh = stage.mesh
    others = [(axis, getattr(mesh, axis)) for axis in ("rp", "tp", "pp", "cp", "ep")]
    return [("dp", mesh.dp), *((axis, size) for axis, size in others if size > 1)]


def _tooltip(stage: StagePlan) -> str:
    reads = ", ".join(stage.reads) or "nothing"
    writes = ", ".join(stage.writes) or "nothing"
    return f"{stage.name} ({stage.run}) reads {reads}; writes {writes}"
