"""Which ranks form a data-parallel replica, a tensor-parallel group and the other groups of a mesh: pure arithmetic.

Ranks are numbered with dp slowest and tp, whose ranks talk most and belong on one host, fastest. dp=2 tp=2 cp=2:

    rank   0  1  2  3   4  5  6  7
    dp     0  0  0  0   1  1  1  1        over dp: 0 4, 1 5, 2 6, 3 7
    cp     0  0  1  1   0  0  1  1        over cp: 0 2, 1 3, 4 6, 5 7
    tp     0  1  0  1   0  1  0  1        over tp: 0 1, 2 3, 4 5, 6 7     a copy: 0 1 2 3, 4 5 6 7

Replicas divide dp in runs of neighbours, each of which shares out weights of its own. Over rp are those with the same
shard of them; what is left of dp in a replica is called sp. rp=2 in a mesh of dp=4 tp=2:

    rank   0  1  2  3   4  5  6  7
    rp     0  0  0  0   1  1  1  1        over rp: 0 4, 1 5, 2 6, 3 7
    sp     0  0  1  1   0  0  1  1        over sp: 0 2, 1 3, 4 6, 5 7     over dp: 0 2 4 6, 1 3 5 7

Experts reuse ranks of the other axes: those of one pipeline stage of a replica, in runs of `ep`. Over edp are those of
a replica with the same experts. ep=4 in the first mesh above:

    over ep: 0 1 2 3, 4 5 6 7        over edp: 0 4, 1 5, 2 6, 3 7
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from operator import mul
from typing import Literal

from rljob_api.pipeline.meshes import Mesh

Axis = Literal["dp", "rp", "sp", "tp", "pp", "cp", "ep", "edp"]
Axes = tuple[Axis, ...]

COPY: Axes = ("pp", "cp", "tp")
"""Over these are the ranks that hold the same rows."""
TOKENS: Axes = ("cp", "tp")
"""Over these are the ranks that compute the same layers for the same rows."""
SHARDS: Axes = ("sp", "cp")
"""Over these are the ranks of a replica that would hold the same weights, and share them out."""
LAYERS: Axes = ("sp", "cp", "tp")
"""Over these are the ranks of a replica that hold the same layers."""
STAGE: Axes = ("dp", "cp", "tp")
"""Over these are the ranks that hold the same layers, whatever the replica."""

EVERYONE: Axes = ("dp", "pp", "cp", "tp")

_SLOWEST_FIRST: Axes = ("rp", "sp", "pp", "cp", "tp")
_TOGETHER: tuple[Axes, ...] = (
    EVERYONE,
    COPY,
    ("dp",),
    ("rp",),
    TOKENS,
    SHARDS,
    LAYERS,
    STAGE,
    ("pp",),
    ("cp",),
    ("tp",),
    ("ep",),
    ("edp",),
)


def ranks_over(mesh: Mesh, rank: int, axes: Axes) -> tuple[int, ...]:
    """The ranks, ascending, that `rank` meets along `axes`: those at its place on every other axis."""
    if axes in (("ep",), ("edp",)):
        return _experts(mesh, rank, axes[0])
    sizes, along = _sizes(mesh), {*axes, *(("rp", "sp") if "dp" in axes else ())}
    strides = _strides(mesh)
    places = (range(sizes[axis]) if axis in along else (rank // strides[axis] % sizes[axis],) for axis in sizes)
    return tuple(sum(map(mul, place, strides.values())) for place in product(*places))


def _sizes(mesh: Mesh) -> dict[Axis, int]:
    """Sizes of the axes that multiply to the mesh, the slowest first."""
    assert mesh.dp % mesh.rp == 0, f"{mesh.rp} replicas do not divide the {mesh.dp} copies of a mesh"
    return {axis: mesh.dp // mesh.rp if axis == "sp" else getattr(mesh, axis) for axis in _SLOWEST_FIRST}


def _strides(mesh: Mesh) -> dict[Axis, int]:
    """By axis, how far apart neighbours along it are."""
    strides: dict[Axis, int] = {}
    stride = mesh.size
    for axis, size in _sizes(mesh).items():
        stride //= size
        strides[axis] = stride
    return strides


def meetings(mesh: Mesh, rank: int) -> Iterator[tuple[Axes, tuple[int, ...]]]:
    """The ranks that `rank` meets along all axes that there is work over; in the same order on every rank."""
    return ((axes, ranks_over(mesh, rank, axes)) for axes in _TOGETHER)


def _experts(mesh: Mesh, rank: int, axis: Axis) -> tuple[int, ...]:
    stage = ranks_over(mesh, rank, LAYERS)
    assert len(stage) % mesh.ep == 0, f"{mesh.ep} ranks per expert do not divide the {len(stage)} of a pipeline stage"
    run, place = divmod(stage.index(rank), mesh.ep)
    return stage[run * mesh.ep : (run + 1) * mesh.ep] if axis == "ep" else stage[place :: mesh.ep]
