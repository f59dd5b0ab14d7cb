"""The versions of a policy that exist at once with `rollout.maxStaleness`, as a table. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_api.planning.version_sizes import VersionSizes
from rljob_api.vocabulary.quantity import format_bytes
from rljob_worker.cli.plan.sheet import Sheet


def version_sheet(staleness: int, sizes: Sequence[VersionSizes]) -> Sheet:
    """What a checkpoint has of each policy besides the weights in training, and what the store of a host has."""
    title = f"Versions of weights, rollout.maxStaleness {staleness}"
    headers = ("policy", "one version", "a checkpoint keeps", "the store holds", "on a host of", "its slots have")
    return Sheet(title, headers, tuple(map(_cells, sizes)))


def _cells(sizes: VersionSizes) -> tuple[str, ...]:
    kept = _total(sizes.num_kept, sizes.kept_bytes) if sizes.num_kept else "nothing: checkpoint.versions is Redraw"
    one = "unknown: no config.json at hand" if sizes.model_bytes is None else format_bytes(sizes.model_bytes)
    return sizes.model, one, kept, _total(sizes.num_stored, sizes.stored_bytes), sizes.group, format_bytes(sizes.room)


def _total(count: int, size: int | None) -> str:
    versions = f"{count} version{'s' * (count > 1)}"
    return versions if size is None else f"{versions}, {format_bytes(size)}"
