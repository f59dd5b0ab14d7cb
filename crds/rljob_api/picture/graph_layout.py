"""Where the boxes and lines of a DAG picture go: one column per level, long edges routed between the boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rljob_api.pipeline.dag import Graph

NUM_SWEEPS = 8


@dataclass(frozen=True)
class GraphLayout:
    """Grid positions: column = level, row = place within the level, centred around 0."""

    positions: Mapping[str, tuple[int, float]]
    routes: Mapping[tuple[str, str], Sequence[tuple[int, float]]]
    """For each edge its bends: where it passes the levels in between, and both ends."""


def lay_out(graph: Graph, edges: Sequence[tuple[str, str]]) -> GraphLayout:
    """The layered drawing of a DAG; bends of long edges take a place in each level they pass."""
    level = graph.levels()
    chains = {edge: _chain(edge, level) for edge in edges}
    columns: dict[int, list[str]] = {}
    for name in graph.order():
        columns.setdefault(level[name], []).append(name)
    for (_, target), chain in chains.items():
        for offset, bend in enumerate(chain[1:-1], start=1):
            columns[level[target] - len(chain) + 1 + offset].append(bend)
    links = [pair for chain in chains.values() for pair in zip(chain, chain[1:], strict=False)]
    _sort_columns(columns, links)
    positions = {
        name: (column, index - (len(names) - 1) / 2)
        for column, names in columns.items()
        for index, name in enumerate(names)
    }
    routes = {edge: [positions[name] for name in chain] for edge, chain in chains.items()}
    return GraphLayout({name: positions[name] for name in level}, routes)


def _chain(edge: tuple[str, str], level: Mapping[str, int]) -> list[str]:
    """Both ends of an edge, and a bend for each level between them."""
    source, target = edge
    return [source, *(f"{source}->{target}@{i}" for i in range(level[source] + 1, level[target])), target]


def _sort_columns(columns: dict[int, list[str]], links: Sequence[tuple[str, str]]) -> None:
    """Order each column by the mean place of its neighbours, forth and back, so that few lines cross."""
    before: dict[str, list[str]] = {}
    behind: dict[str, list[str]] = {}
    for source, target in links:
        before.setdefault(target, []).append(source)
        behind.setdefault(source, []).append(target)
    for sweep in range(NUM_SWEEPS):
        neighbours = behind if sweep % 2 else before
        for column in sorted(columns, reverse=bool(sweep % 2)):
            place = {name: i - (len(names) - 1) / 2 for names in columns.values() for i, name in enumerate(names)}

            def mean_place(
                name: str, place: Mapping[str, float] = place, near: Mapping[str, list[str]] = neighbours
            ) -> float:
                around = near.get(name, [])
                return sum(place[item] for item in around) / len(around) if around else place[name]

            columns[column].sort(key=mean_place)
