"""Who works with whom in a mesh: pure arithmetic on ranks.

Ranks are numbered with dp slowest and tp, whose ranks talk most and belong on one host, fastest. dp=2 tp=2 cp=2:

    rank   0  1  2  3   4  5  6  7
    dp     0  0  0  0   1  1  1  1        over dp: 0 4, 1 5, 2 6, 3 7
    cp     0  0  1  1   0  0  1  1        over cp: 0 2, 1 3, 4 6, 5 7
    tp     0  1  0  1   0  1  0  1        over tp: 0 1, 2 3, 4 5, 6 7     a copy: 0 1 2 3, 4 5 6 7

Experts reuse ranks of the other axes: those of one pipeline stage, in runs of `ep`. Over edp are those with the same
experts. ep=4 in the mesh above:

    over ep: 0 1 2 3, 4 5 6 7        over edp: 0 4, 1 5, 2 6, 3 7
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from operator import mul
from typing import Literal

from rljob_api.pipeline.meshes import Mesh

Axis = Literal["dp", "tp", "pp", "cp", "ep", "edp"]
Axes = tuple[Axis, ...]

COPY: Axes = ("pp", "cp", "tp")
"""Over these are the ranks that hold the same rows."""
TOKENS: Axes = ("cp", "tp")
"""Over these are the ranks that compute the same layers for the same rows."""
SHARDS: Axes = ("dp", "cp")
"""Over these are the ranks that would hold the same weights, and can share them out."""
STAGE: Axes = ("dp", "cp", "tp")
"""Over these are the ranks that hold the same layers."""

EVERYONE: Axes = ("dp", "pp", "cp", "tp")

_SLOWEST_FIRST: Axes = EVERYONE
_TOGETHER: tuple[Axes, ...] = (
    EVERYONE,
    COPY,
    ("dp",),
    TOKENS,
    SHARDS,
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
    strides = _strides(mesh)
    sizes = {axis: getattr(mesh, axis) for axis in _SLOWEST_FIRST}
    places = (range(sizes[axis]) if axis in axes else (rank // strides[axis] % sizes[axis],) for axis in _SLOWEST_FIRST)
    return tuple(sum(map(mul, place, strides.values())) for place in product(*places))


def _strides(mesh: Mesh) -> dict[Axis, int]:
    """By axis, how far apart neighbours along it are."""
    strides: dict[Axis, int] = {}
    stride = mesh.size
    for axis in _SLOWEST_FIRST:
        stride //= getattr(mesh, axis)
        strides[axis] = stride
    return strides


def meetings(mesh: Mesh, rank: int) -> Iterator[tuple[Axes, tuple[int, ...]]]:
    """Whom `rank` meets along all axes that there is work over; in the same order on every rank."""
    return ((axes, ranks_over(mesh, rank, axes)) for axes in _TOGETHER)


def _experts(mesh: Mesh, rank: int, axis: Axis) -> tuple[int, ...]:
    stage = ranks_over(mesh, rank, STAGE)
    assert len(stage) % mesh.ep == 0, f"{mesh.ep} ranks per expert do not divide the {len(stage)} of a pipeline stage"
    run, place = divmod(stage.index(rank), mesh.ep)
    return stage[run * mesh.ep : (run + 1) * mesh.ep] if axis == "ep" else stage[place :: mesh.ep]
