"""Python packages with entry points, in a folder that stands for the packages that are installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from rljob_api.catalogue.declarations import Declarations
from rljob_api.catalogue.optimizers import OPTIMIZERS
from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_api.catalogue.trackers import TRACKERS


def make_package(site: Path, name: str, files: Mapping[str, str], **groups: str) -> None:
    """As pip leaves it. groups: by the last part of a group's name, a line of its entry points."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("".join(f"[rljob.{group}]\n{line}\n" for group, line in groups.items()))
    for file, text in files.items():
        (site / file).write_text(text)


@contextmanager
def installed(site: Path) -> Iterator[None]:
    """What is in `site` is installed for this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        _forget()
        try:
            yield
        finally:
            _forget()


def _forget() -> None:
    declarations: tuple[Declarations, ...] = (OPTIMIZERS, ROLLOUT_ENGINES, TRACKERS)
    for declaration in declarations:
        declaration.forget()
