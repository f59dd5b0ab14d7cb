"""Room that the steps under way take in the data buffer of a host.

    room = 9/8 x ((S + 1) x (rows it puts + rows it maps) + leases) + control + weights

    S               `rollout.maxStaleness`: steps that generation is ahead, whose rows lie there besides those of the
                    step that is trained on
    rows it puts    over the edges that leave the group through data buffers: those of the host's row leaders
    rows it maps    over the edges that enter it likewise: those of the copies that have ranks on the host
    bytes           of a row at its longest: 24 of index; per token 8 for ids, 1 for masks, 4 for float32; for each
                    ragged column 8 of offset; fixed columns (`catalogue.widths`); and of a prompt, once for each
                    group: balanced one by one, every row of a copy may be of another
    leases          with an elastic group, on hosts that own its leases: the rows of one step of their workers, for
                    those of later steps wait where they were made; there: two leases of each copy, one that is
                    fetched while the next is made
    control         CONTROL_BYTES
    weights         their share of the arena (`weights_share`) where weights enter or leave the group
                    through data buffers; half of it in an elastic group, whose pods hold whole versions

Everything that a step puts may be there while everything is that it maps, for inputs are given back at its end; an edge
between stages of one group is counted at both ends. A copy takes `rows / copies` rows, whole groups of them. Rows that
lie where they were made may be made unevenly: a host is given room for twice its part, four times with
`rollout.partial`, or for a lease of each copy if `rollout.leaseRows` makes that more. The eighth on top is for
beginnings of pages and columns, the gaps that an earlier step leaves, and shares that balancing makes unequal.

With generation ahead, rows of S + 1 steps may wait where they were made, or where they are read. A host with less room
would make generation wait for training. All edges are counted as often, those within the training group too.

With `dataBuffer.spill` rows may lie on disk, each part and each share as a whole. One of s bytes finds no room only
when memory and disk have less than s left each, so what is needed of both together is

    room + the largest part or share

of which weights stay in memory.

Columns of unknown size, texts of the data and what users' stages write, are named and not counted; neither are routes
of experts where the model is not at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from rljob_api.catalogue.column_widths import is_known, known_bytes, prompt_bytes
from rljob_api.pipeline.edges import (
    StageLayout,
    columns_by_producer,
    divides_workers,
    stage_layout,
    stays_in_place,
)
from rljob_api.pipeline.meshes import Mesh, mesh_of
from rljob_api.pipeline.resolution import Resolution, is_elastic, lead_group_of
from rljob_api.v1alpha1 import RLJobSpec

WEIGHT_SLOTS_BYTES = 64 << 20
"""What chunks of weights take of an arena at least, on each host that an edge of weights passes."""

LEASE_ROWS = 256
"""Rows of a lease of an elastic group at most, about, without `rollout.leaseRows`."""

LARGEST_WEIGHTS_PART = 8
"""Chunks of weights take at most one n-th of a large arena."""

CONTROL_BYTES = 1 << 20
"""What headers of rows under way take in the memory of a host, at most."""

SCATTER = 2
"""How much more than its part a host may hold of rows that lie where they were made."""

SCATTER_CARRIED = 4
"""The factor with `rollout.partial`: which groups are complete in a step is a matter of chance."""


def weights_share(memory: int, *, holds_versions: bool = False) -> int:
    """Bytes of an arena of `memory` bytes that chunks of weights may take; never more than half. holds_versions: on
    pods of an elastic group, which keep whole versions and few rows."""
    return memory // 2 if holds_versions else min(max(WEIGHT_SLOTS_BYTES, memory // LARGEST_WEIGHTS_PART), memory // 2)


def memory_beside_weights(rest: int) -> int:
    """The smallest arena in which `rest` bytes are left beside the share of weights that is wanted for them."""
    return max(rest + WEIGHT_SLOTS_BYTES, ceil(rest * LARGEST_WEIGHTS_PART / (LARGEST_WEIGHTS_PART - 1)))


@dataclass(frozen=True)
class BufferCapacity:
    """What the steps under way take on a host of one group, in bytes."""

    puts: int = 0
    """Rows of one step."""
    maps: int = 0
    """Rows of one step."""
    largest: int = 0
    """The part that one worker puts over one edge or gets over it, where that is most."""
    has_weights: bool = False
    uncounted: tuple[str, ...] = ()
    """Columns of unknown size, in the order in which stages get them."""
    num_steps: int = 1
    """Steps whose rows may be there at once."""
    leases: int = 0
    """Rows of an elastic group that are on their way, or wait to be fetched."""
    holds_versions: bool = False
    """Whether the group is elastic: its pods hold whole versions of the weights."""

    @property
    def total(self) -> int:
        """What `dataBuffer.memory` has to be, at least, without a spill file."""
        return self.rows + self.weights

    @property
    def least_memory(self) -> int:
        """What `dataBuffer.memory` has to be, at least, however large the spill file is."""
        return CONTROL_BYTES + (WEIGHT_SLOTS_BYTES if self.has_weights else 0)

    def least_spill(self, memory: int) -> int:
        """What `dataBuffer.spill.limit` has to be, at least, beside so much memory."""
        if memory >= self.total:
            return 0
        share = weights_share(memory, holds_versions=self.holds_versions)
        for_rows = memory - (share if self.has_weights else 0)
        return self.rows + ceil(self.largest * 9 / 8) - for_rows

    @property
    def weights(self) -> int:
        """Bytes of it that are for chunks of weights."""
        if self.has_weights and self.holds_versions:
            return max(WEIGHT_SLOTS_BYTES, self.rows)
        return memory_beside_weights(self.rows) - self.rows if self.has_weights else 0

    @property
    def rows(self) -> int:
        """What is left for rows of all steps under way, and for headers of rows under way."""
        return ceil((self.num_steps * (self.puts + self.maps) + self.leases) * 9 / 8) + CONTROL_BYTES

    @property
    def rows_of_a_step(self) -> int:
        """What the rows of one step take of it, and headers of rows under way."""
        return ceil((self.puts + self.maps + self.leases) * 9 / 8) + CONTROL_BYTES


@dataclass(frozen=True)
class _Crossing:
    """Rows that go through data buffers."""

    producer: StageLayout
    consumer: StageLayout
    columns: tuple[str, ...]
    route_bytes: int


def capacity_of(
    resolution: Resolution, group: str, layouts: Mapping[str, StageLayout], route_bytes: int = 0
) -> BufferCapacity:
    """The room of a host of `group`; stages without a layout are left out. route_bytes: of a token's routes, where
    that is known."""
    spec, puts, maps, largest, uncounted = resolution.spec, 0, 0, 0, list[str]()
    hosts = next(worker_group for worker_group in spec.worker_groups if worker_group.name == group)
    num_workers = hosts.accelerator.count
    for edge in _crossings(resolution, layouts, route_bytes):
        if edge.producer.group == group:
            one = _part_of(spec, edge, edge.producer)
            part = one * most_leaders(edge.producer.mesh, num_workers)
            if edge.producer.scatters_rows:  # perhaps all of it by one worker
                lease = _lease_bytes(spec, edge) * most_leaders(edge.producer.mesh, num_workers)
                scatter = SCATTER if spec.rollout.partial is None else SCATTER_CARRIED
                one = part = min(_bytes(spec, edge, spec.num_rows), max(scatter * part, lease))
            puts, largest = puts + part, max(largest, one)
        if edge.consumer.group == group:
            one = _part_of(spec, edge, edge.consumer)
            maps += one * most_copies(edge.consumer.mesh, num_workers)
            largest = max(largest, one)
        if group in (edge.producer.group, edge.consumer.group):
            uncounted += (column for column in edge.columns if not is_known(column, route_bytes))
    leases = 0
    for made in _deliveries(resolution, group, layouts, route_bytes):
        one, leases = _leased(resolution, group, made)
        largest = max(largest, one)
        uncounted += (column for column in made.columns if not is_known(column, route_bytes))
    return BufferCapacity(
        puts,
        maps,
        largest,
        has_weights=group in _weight_groups(resolution, layouts),
        uncounted=tuple(dict.fromkeys(uncounted)),
        num_steps=spec.rollout.max_staleness + 1,
        leases=leases,
        holds_versions=is_elastic(spec, group),
    )


def _deliveries(
    resolution: Resolution, group: str, layouts: Mapping[str, StageLayout], route_bytes: int
) -> Iterator[_Crossing]:
    """All that an elastic group makes, on its own pods and on those that own it; nothing for other groups."""
    made = [(layout, resolution.stages[name]) for name, layout in layouts.items() if layout.generated_in is not None]
    if made and group in (made[0][0].group, made[0][0].generated_in):
        columns = dict.fromkeys(column for _, stage in made for column in stage.columns.writes)
        yield _Crossing(made[0][0], made[0][0], tuple(columns), route_bytes)


def _leased(resolution: Resolution, group: str, made: _Crossing) -> tuple[int, int]:
    """Bytes of one lease, or of one worker's, and of all that a host has at once."""
    spec, owners = resolution.spec, made.producer
    part = _part_of(spec, made, owners)
    workers = next(item.accelerator.count for item in spec.worker_groups if item.name == group)
    if group == owners.group:
        return part, part * most_leaders(owners.mesh, workers)
    group_size = spec.algorithm.group_size
    lease_rows = max(1, (spec.rollout.lease_rows or LEASE_ROWS) // group_size) * group_size
    lease = min(part, _bytes(spec, made, lease_rows))
    return lease, 2 * lease * most_leaders(mesh_of(spec, group, "Rollout"), workers)


def _part_of(spec: RLJobSpec, edge: _Crossing, layout: StageLayout) -> int:
    """Bytes of what one copy of either end has of an edge."""
    num_rows = ceil(spec.num_rows / layout.mesh.dp)
    if layout.keeps_groups_whole:
        return _bytes(spec, edge, num_rows)
    return _bytes(spec, edge, num_rows, num_groups=min(num_rows, spec.data.batch_size))


def _lease_bytes(spec: RLJobSpec, edge: _Crossing) -> int:
    """Bytes of a lease of `rollout.leaseRows`, which a copy may take however many copies there are."""
    if spec.rollout.lease_rows is None:
        return 0
    group_size = spec.algorithm.group_size
    return _bytes(spec, edge, min(spec.num_rows, ceil(spec.rollout.lease_rows / group_size) * group_size))


def _bytes(spec: RLJobSpec, edge: _Crossing, num_rows: int, num_groups: int | None = None) -> int:
    """Bytes of some trajectories with the prompts of their groups, by default of whole ones. Rows that are
    played have prompts of their own."""
    groups = ceil(num_rows / spec.algorithm.group_size) if num_groups is None else num_groups
    if spec.rollout.played is not None:
        num_rows *= spec.rows_per_trajectory
        groups = num_rows
    return max(
        num_rows * known_bytes(edge.columns, response, edge.route_bytes)
        + groups * prompt_bytes(edge.columns, prompt, edge.route_bytes)
        for prompt, response in spec.longest_rows
    )


def layouts_of(resolution: Resolution, placed: Mapping[str, str | None]) -> dict[str, StageLayout]:
    """The layouts of those stages whose group exists and is a whole number of copies of their models."""
    groups = {group.name for group in resolution.spec.worker_groups}
    layouts, lead = {}, lead_group_of(resolution, placed)
    for name, stage in resolution.stages.items():
        group = placed[name]
        if is_elastic(resolution.spec, group) and (lead not in groups or lead == group):
            continue
        if group in groups and group is not None and divides_workers(resolution, stage, group):
            layouts[name] = stage_layout(resolution, stage, placed)
    return layouts


def most_leaders(mesh: Mesh, workers_per_host: int) -> int:
    """Row leaders on the host that has most of them: the first."""
    return ceil(workers_per_host / mesh.ranks_per_copy)


def most_copies(mesh: Mesh, workers_per_host: int) -> int:
    """Copies that have ranks on one host, where those are most; a copy may begin on one host and end on another."""
    size = mesh.ranks_per_copy
    # where copies begin repeats after as many hosts as a copy has ranks
    firsts = range(0, min(mesh.size, size * workers_per_host), workers_per_host)
    return max((first + workers_per_host - 1) // size - first // size + 1 for first in firsts)


def _crossings(resolution: Resolution, layouts: Mapping[str, StageLayout], route_bytes: int) -> Iterator[_Crossing]:
    for name, consumer in layouts.items():
        for other, columns in columns_by_producer(resolution, resolution.stages[name]).items():
            producer = layouts.get(other)
            if producer is not None and not stays_in_place(producer, consumer):
                yield _Crossing(producer, consumer, columns, route_bytes)


def _weight_groups(resolution: Resolution, layouts: Mapping[str, StageLayout]) -> set[str]:
    """Groups that weights leave, or enter, through data buffers."""
    if resolution.spec.weight_sync.transport == "Collective":
        return set()
    return {group for edge in weight_edges(resolution, layouts) for group in edge if len(set(edge)) > 1}


def weight_edges(resolution: Resolution, layouts: Mapping[str, StageLayout]) -> set[tuple[str, str]]:
    """(group that trains, group that generates) of every policy; the same group where it does both."""
    trains, generates = set[tuple[str, str]](), set[tuple[str, str]]()
    for name, layout in layouts.items():
        stage = resolution.stages[name]
        homes = generates if stage.generates else trains if stage.trains else set[tuple[str, str]]()
        homes.update((model, layout.generated_in or layout.group) for model in stage.models)
    return {(source, target) for model, source in trains for same, target in generates if model == same}
