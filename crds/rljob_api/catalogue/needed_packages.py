"""Python packages that rljob does not bring."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NeededPackage:
    """What a part that a job names has to have where workers run."""

    module: str
    """As it is imported."""
    remedy: str
    """What brings it, and what to write in the job where it is not wanted: a sentence."""


def from_extra(extra: str, otherwise: str) -> NeededPackage:
    """A package for which rljob has an extra of its name. otherwise: what to write in the job."""
    return NeededPackage(
        extra, f"`pip install 'rljob[{extra}]'` brings it to the workers' environment or image; or {otherwise}."
    )
