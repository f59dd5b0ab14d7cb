"""Which files of a data set of the Hub are of a subset and split: as its card says, else by their names. Pure.

https://huggingface.co/docs/hub/datasets-manual-configuration
https://huggingface.co/docs/hub/datasets-file-names-and-splits
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_worker.data.source import nearest_of
from rljob_worker.errors import BadData
from rljob_worker.storage.address import translated

_KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Words in the names of files and folders by which splits are known."""
_NO_ROWS = (".md", ".txt", ".gitattributes", ".yaml", ".yml", ".py", ".gitignore", "LICENSE")


@dataclass(frozen=True, slots=True)
class SplitName:
    """What the job asks for of one data set."""

    dataset: str
    subset: str | None
    split: str | None

    @property
    def wanted_split(self) -> str:
        return self.split or "train"


def files_of_split(names: Sequence[str], card: Mapping[str, Any], wanted: SplitName) -> list[str]:
    """Those of the names, sorted. card: the front matter of the data set's README. Raises BadData for a subset or a
    split that is not there, with those that are."""
    configs = [item for item in card.get("configs") or () if isinstance(item, Mapping)]
    rows = sorted(name for name in names if not name.endswith(_NO_ROWS) and not name.rpartition("/")[2].startswith("."))
    by_split = _of_card(rows, _config(configs, wanted)) if configs else _by_names(_in_subset(rows, wanted))
    by_split = {split: files for split, files in by_split.items() if files}
    if wanted.wanted_split not in by_split:
        there = nearest_of(wanted.wanted_split, sorted(by_split), "it has")
        raise BadData(f"the data set {wanted.dataset} has no split {wanted.wanted_split!r}; {there}")
    return by_split[wanted.wanted_split]


def _config(configs: Sequence[Mapping[str, Any]], wanted: SplitName) -> Mapping[str, Any]:
    """What the card says of the subset."""
    by_name = {str(item.get("config_name", "default")): item for item in configs}
    if wanted.subset is not None and wanted.subset not in by_name:
        there = nearest_of(wanted.subset, list(by_name), "it has")
        raise BadData(f"the data set {wanted.dataset} has no subset {wanted.subset!r}; {there}")
    default = next((name for name, item in by_name.items() if item.get("default")), "default")
    chosen = wanted.subset or (next(iter(by_name)) if len(by_name) == 1 else default)
    if chosen not in by_name:
        raise BadData(f"the data set {wanted.dataset} has several subsets; write subset: {' or '.join(by_name)}")
    return by_name[chosen]


def _of_card(names: Sequence[str], config: Mapping[str, Any]) -> dict[str, list[str]]:
    folder = str(config.get("data_dir") or "").strip("./")
    within = [name for name in names if not folder or name.startswith(f"{folder}/")]
    said = config.get("data_files")
    if said is None:
        return _by_names(within)
    listed = said if isinstance(said, list) else [said]
    result = dict[str, list[str]]()
    for item in listed:
        split, paths = (item.get("split", "train"), item.get("path")) if isinstance(item, Mapping) else ("train", item)
        patterns = [re.compile(translated(str(path))) for path in (paths if isinstance(paths, list) else [paths])]
        result.setdefault(str(split), []).extend(
            name for name in within if any(pattern.fullmatch(name) for pattern in patterns)
        )
    return result


def _in_subset(names: Sequence[str], wanted: SplitName) -> Sequence[str]:
    """Without a card a subset is a folder."""
    if wanted.subset is None:
        return names
    result = [name for name in names if name.startswith(f"{wanted.subset}/")]
    if not result:
        folders = sorted({name.partition("/")[0] for name in names if "/" in name})
        there = nearest_of(wanted.subset, folders, "it has the folders")
        raise BadData(f"the data set {wanted.dataset} has no subset {wanted.subset!r}; {there}")
    return result


def _by_names(names: Sequence[str]) -> dict[str, list[str]]:
    """Files by the split that their names say; all of them are for training where none says any."""
    result = {split: [name for name in names if _says(name, words)] for split, words in _KEYWORDS.items()}
    return result if any(result.values()) else {"train": list(names)}


def _says(name: str, words: Sequence[str]) -> bool:
    return any(re.search(rf"(?<![a-z0-9]){word}(?![a-z0-9])", name.lower()) for word in words)
