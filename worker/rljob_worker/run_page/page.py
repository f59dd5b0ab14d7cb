"""The page itself: everything that it needs is in it."""

import html
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from rljob_worker.metrics.lines import line_file_errors
from rljob_worker.run_page.content import page_data, read_content


def page(directories: Sequence[Path], *, live: bool = False) -> str:
    """HTML of the runs in these folders. live: the page asks its server for newer data now and then."""
    parts = {
        "title": html.escape(", ".join(directory.name for directory in directories)),
        "style": _asset("uplot.css") + _asset("page.css"),
        "library": _asset("uplot.js"),
        "data": page_data(map(read_content, directories)),
        "live": "true" if live else "false",
        "samples": _asset("samples.js"),
        "script": _asset("page.js"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _asset("page.html"))


def write_page(directories: Sequence[Path], path: Path) -> None:
    """Readers see the old page or the new one. Raises StorageError."""
    partial = path.with_name(f".{path.name}.partial")
    with line_file_errors(path):
        partial.write_text(page(directories), encoding="utf-8")
        partial.replace(path)


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
