"""Which files a path of a data set stands for, and what they hold; nothing is read of them but `state.json`."""

from __future__ import annotations

import glob
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rljob_worker.data.listing import DataFile, Listing
from rljob_worker.data.source import json_record, nearest_of
from rljob_worker.errors import BadData

Kind = Literal["parquet", "json", "saved"]
"""`saved`: the Arrow files of a folder that `save_to_disk` wrote."""

_KINDS: dict[str, Kind] = {".parquet": "parquet", ".jsonl": "json", ".ndjson": "json", ".json": "json"}
_NOTES = ("dataset_info.json", "dataset_infos.json")


@dataclass(frozen=True, slots=True)
class DataFiles:
    """The files of one data set, in their order."""

    path: str
    kind: Kind
    files: tuple[Path, ...]
    """Those that hold rows."""

    @property
    def listing(self) -> Listing:
        """As they are now."""
        result = ((file, file.stat()) for file in self.files)
        return tuple(DataFile(str(file.absolute()), stat.st_size, str(stat.st_mtime_ns)) for file, stat in result)


def data_files(path: str) -> DataFiles:
    """The data files at the job's path. Raises BadData: nothing there, files of an unknown kind or of several, an empty
    file."""
    files = _files(path)
    names = {file.name for file in files}
    if Path(path).is_dir() and "dataset_dict.json" in names:
        splits = sorted({file.relative_to(path).parts[0] for file in files if file.name == "state.json"})
        raise BadData(f"{path} holds several splits; name one: {' or '.join(f'{path}/{split}' for split in splits)}")
    if Path(path).is_dir() and "state.json" in names:
        return DataFiles(path, "saved", _saved(Path(path)))
    data = tuple(file for file in files if _kind(file) is not None)
    kinds = {kind for file in data if (kind := _kind(file)) is not None}
    if len(kinds) != 1:
        result = f"holds {' and '.join(sorted(kinds))} files" if kinds else "is none of them"
        raise BadData(
            f"a data set is parquet files, JSON-lines files, or a folder that save_to_disk wrote; {path} {result}"
        )
    for file in data:
        if not file.stat().st_size:
            raise BadData(f"{file} is empty")
    return DataFiles(path, kinds.pop(), data)


def first_bad_line(file: Path) -> str | None:
    """What is wrong with the first line of a JSON-lines file that is not a JSON object; None when every line is one."""
    if file.suffix == ".gz":
        return None
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    json_record(line, f"line {number} of {file}")
    except BadData as problem:
        return str(problem)
    return None


def no_rows(path: str) -> str:
    return f"the data set {path} has no rows"


def _files(path: str) -> tuple[Path, ...]:
    """Everything a path stands for, sorted."""
    place = Path(path)
    if place.is_dir():
        files = [file for file in sorted(place.rglob("*")) if file.is_file() and not file.name.startswith(".")]
    elif glob.has_magic(path) and not place.exists():
        files = [Path(file) for file in sorted(glob.glob(path, recursive=True))]
    else:
        files = [place] if place.exists() else []
    if not files:
        raise BadData(_nothing_at(path))
    return tuple(files)


def _saved(folder: Path) -> tuple[Path, ...]:
    try:
        state = json.loads((folder / "state.json").read_text())
        return tuple(folder / item["filename"] for item in state["_data_files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadData(
            f"{folder}/state.json is not what save_to_disk writes: {type(error).__name__}: {error}"
        ) from error


def _kind(file: Path) -> Kind | None:
    name = file.name.removesuffix(".gz")
    return None if name in _NOTES else _KINDS.get(Path(name).suffix.lower())


def _nothing_at(path: str) -> str:
    """Why a path stands for no file, with the nearest names beside it."""
    place = Path(path)
    if glob.has_magic(path):
        return f"no file matches {path} (in {Path.cwd()})"
    if place.exists():
        return f"the folder {path} is empty"
    if not place.parent.is_dir():
        return f"no data set at {place.absolute()}: there is no folder {place.parent}{_hub_hint(path)}"
    beside: Sequence[str] = sorted(entry.name for entry in place.parent.iterdir())
    return f"no data set at {place.absolute()}; {nearest_of(place.name, beside, f'{place.parent} has')}"


def _hub_hint(path: str) -> str:
    """For what looks like `owner/name`."""
    if path.count("/") != 1 or Path(path).suffix in _KINDS:
        return ""
    return f"; write hf://datasets/{path} to read a data set of the Hub"
