"""`render_svg(plan)`: a picture of the DAG.  Plain SVG text; any browser shows it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from rljob_api.dag import Graph
from rljob_api.graph_layout import Layout, lay_out
from rljob_api.plan import EdgePlan, Plan, StagePlan, WeightEdge
from rljob_api.quantity import format_bytes
from rljob_api.traffic import expected_bytes

BOX_WIDTH, BOX_HEIGHT = 176, 62
GAP_X, PITCH_Y = 168, 104
MARGIN, HEADER, FOOTER = 32, 64, 52
LINE_HEIGHT, MAX_LABEL_LINES, MAX_LABEL_WIDTH = 13, 4, 22

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
LOCAL, BUFFER, WEIGHTS = "#94a3b8", "#0f172a", "#9333ea"

Point = tuple[float, float]


def render_svg(plan: Plan) -> str:
    """The plan's stages as boxes from left to right, coloured by worker group; edges with columns and transport."""
    picture = _Picture(plan)
    body = [*picture.edges(), *picture.weights(), *picture.boxes(), *picture.header(), *picture.legend()]
    width, height = picture.size
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="system-ui, Helvetica, Arial, sans-serif">',
            _marker("local", LOCAL),
            _marker("buffer", BUFFER),
            _marker("weights", WEIGHTS),
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
        self.layout: Layout = lay_out(graph, [(edge.producer, edge.consumer) for edge in plan.edges])
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
        fill, border = self.colours[stage.group]
        left, top = x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2
        models = f" · {', '.join(stage.models)}" if stage.models else ""
        layout = " ".join(f"{axis} {size}" for axis, size in _axes(stage))
        balance = f" · by {stage.balance.lower()}" if stage.balance != "None" else ""
        return "\n".join(
            [
                f"<g><title>{escape(_tooltip(stage))}</title>",
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="10" '
                f'fill="{fill}" stroke="{border}" stroke-width="1.5"/>',
                _text(x, top + 22, stage.name, size=14, weight=600),
                _text(x, top + 38, _clip(f"{stage.run}{models}", 28), size=11, colour="#475569"),
                _text(x, top + 53, f"{stage.group} · {layout}{balance}", size=10, colour=border),
                "</g>",
            ]
        )

    def edges(self) -> list[str]:
        return [self._edge(edge) for edge in self.plan.edges]

    def _edge(self, edge: EdgePlan) -> str:
        points = [self.point(place) for place in self.layout.routes[edge.producer, edge.consumer]]
        points[0] = (points[0][0] + BOX_WIDTH / 2, points[0][1])
        points[-1] = (points[-1][0] - BOX_WIDTH / 2 - 6, points[-1][1])
        colour, width = (LOCAL, 1.4) if edge.transport == "Local" else (BUFFER, 2.0)
        kind = edge.transport.lower()
        # The label sits in the gap before the consumer, where edges to one box still are apart.
        (x0, y0), (x1, y1) = (points[-2][0] + (BOX_WIDTH / 2 if len(points) > 2 else 0), points[-2][1]), points[-1]
        note = "no columns, only order" if not edge.columns else ", ".join(edge.columns)
        traffic = self.traffic[edge.name]
        size = f", up to {format_bytes(traffic.worst)} a step" if traffic.worst else ""
        return "\n".join(
            [
                f"<g><title>{escape(f'{edge.name}: {note} ({kind}{size})')}</title>",
                f'<path d="{_curve(points)}" fill="none" stroke="{colour}" stroke-width="{width}" '
                f'marker-end="url(#{kind})"{_dashes(edge)}/>',
                _label((x0 + x1) / 2 - 3, (y0 + y1) / 2, _wrap(edge.columns), colour),
                "</g>",
            ]
        )

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
        title = f"{edge.name}: {edge.source} to {edge.target} ({edge.transport.lower()})"
        return "\n".join(
            [
                f"<g><title>{escape(title)}</title>",
                f'<path d="{path}" fill="none" stroke="{WEIGHTS}" stroke-width="1.8" stroke-dasharray="7 4" '
                'marker-end="url(#weights)"/>',
                _label((x0 + x1) / 2, floor, [f"{edge.name} · {edge.transport.lower()}"], WEIGHTS),
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
            _text(MARGIN, 34, plan.job, size=20, weight=700, anchor="start"),
            _text(MARGIN, 54, facts, size=12, colour="#475569", anchor="start"),
        ]

    def legend(self) -> list[str]:
        y, x, parts = self.size[1] - 24, float(MARGIN), []
        for group in self.plan.groups:
            fill, border = self.colours[group.name]
            label = f"{group.name}: {group.replicas} x {group.workers_per_host} {group.profile}"
            parts.append(
                f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="14" height="14" rx="4" fill="{fill}" stroke="{border}"/>'
            )
            parts.append(_text(x + 20, y + 1, label, size=11, colour="#475569", anchor="start"))
            x += 44 + 6.2 * len(label)
        for label, colour, width in (("in the process", LOCAL, 1.4), ("through data buffers", BUFFER, 2.0)):
            parts.append(f'<path d="M {x:.1f} {y - 3:.1f} h 28" stroke="{colour}" stroke-width="{width}"/>')
            parts.append(_text(x + 34, y + 1, label, size=11, colour="#475569", anchor="start"))
            x += 58 + 6.2 * len(label)
        return parts


def _axes(stage: StagePlan) -> list[tuple[str, int]]:
    mesh = stage.mesh
    others = [(axis, getattr(mesh, axis)) for axis in ("tp", "pp", "cp", "ep")]
    return [("dp", mesh.dp), *((axis, size) for axis, size in others if size > 1)]


def _tooltip(stage: StagePlan) -> str:
    reads = ", ".join(stage.reads) or "nothing"
    writes = ", ".join(stage.writes) or "nothing"
    return f"{stage.name} ({stage.run}) reads {reads}; writes {writes}"


def _wrap(columns: Sequence[str]) -> list[str]:
    """Column names in short lines, the last of which says how many more there are."""
    lines: list[str] = []
    for index, column in enumerate(columns):
        if lines and len(lines[-1]) + len(column) + 2 <= MAX_LABEL_WIDTH:
            lines[-1] += f", {column}"
        elif len(lines) == MAX_LABEL_LINES - 1 and index < len(columns) - 1:
            return [*lines, f"and {len(columns) - index} more"]
        else:
            lines.append(column)
    return lines


def _curve(points: Sequence[Point]) -> str:
    """A smooth line through all points: level at each of them, straight across the boxes' columns it passes."""
    path = f"M {points[0][0]:.1f} {points[0][1]:.1f}"
    for index, (x, y) in enumerate(points[1:], start=1):
        is_bend = index < len(points) - 1
        entry = x - BOX_WIDTH / 2 if is_bend else x
        start_x, start_y = points[index - 1]
        start_x += BOX_WIDTH / 2 if index > 1 else 0
        middle = (start_x + entry) / 2
        path += f" C {middle:.1f} {start_y:.1f} {middle:.1f} {y:.1f} {entry:.1f} {y:.1f}"
        path += f" H {x + BOX_WIDTH / 2:.1f}" if is_bend else ""
    return path


def _label(x: float, y: float, lines: Sequence[str], colour: str) -> str:
    """Lines of text on a white ground, centred at a point."""
    if not lines:
        return ""
    width, height = 5.6 * max(map(len, lines)) + 10, LINE_HEIGHT * len(lines) + 4
    ground = (
        f'<rect x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" height="{height:.1f}" '
        'rx="4" fill="#ffffff" fill-opacity="0.92"/>'
    )
    texts = [
        _text(
            x,
            y - height / 2 + LINE_HEIGHT * (i + 1) - 1,
            line,
            size=10,
            colour="#334155" if colour == LOCAL else colour,
        )
        for i, line in enumerate(lines)
    ]
    return "\n".join([ground, *texts])


def _text(
    x: float, y: float, text: str, *, size: int, colour: str = "#0f172a", weight: int = 400, anchor: str = "middle"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{colour}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )


def _clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _dashes(edge: EdgePlan) -> str:
    return "" if edge.columns else ' stroke-dasharray="3 4"'


def _marker(name: str, colour: str) -> str:
    return (
        f'<defs><marker id="{name}" viewBox="0 0 8 8" refX="1" refY="4" markerWidth="8" markerHeight="8" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M 0 0 L 8 4 L 0 8 z" fill="{colour}"/></marker></defs>'
    )
