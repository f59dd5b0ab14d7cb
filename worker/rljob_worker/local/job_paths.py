"""Relative paths of a job mean files beside its YAML; anything that is not there is left as it is (a hub id)."""

import glob
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rljob_api.catalogue.services import PREFIX
from rljob_api.v1alpha1 import DatasetSpec, ModelSpec, RLJob, ServiceSpec
from rljob_api.vocabulary.data_url import scheme_of

Located = TypeVar("Located", ModelSpec, DatasetSpec)

_DATA_ENDINGS = {".parquet", ".json", ".jsonl", ".csv", ".arrow", ".gz", ".zst"}


@dataclass(frozen=True, slots=True)
class JobPath:
    """One path in a job: where it stands, what it says."""

    place: str
    text: str
    is_data: bool

    @property
    def is_url(self) -> bool:
        """Whether it is in a store: nothing about it is known here."""
        return scheme_of(self.text) is not None

    @property
    def looks_local(self) -> bool:
        """Whether it cannot be a name on a hub: `./model`, `../x`, `/x`, `~/x`, `data/train.parquet`, `data/*.json`."""
        if self.is_url:
            return False
        if self.text.startswith((".", "/", "~")):
            return True
        return self.is_data and (glob.has_magic(self.text) or Path(self.text).suffix in _DATA_ENDINGS)

    def beside(self, folder: Path) -> Path:
        """Where the file is if it is local."""
        return folder / Path(self.text).expanduser()

    def exists(self, folder: Path) -> bool:
        path = self.beside(folder)
        return path.exists() or (glob.has_magic(self.text) and bool(glob.glob(str(path), recursive=True)))


def paths_of(job: RLJob) -> Iterator[JobPath]:
    """Every path of the job that names input."""
    for index, model in enumerate(job.spec.models):
        yield JobPath(f"spec.models[{index}].path", model.path, is_data=False)
    for kind, datasets in (("train", job.spec.data.train), ("validation", job.spec.data.validation)):
        for index, dataset in enumerate(datasets):
            yield JobPath(f"spec.data.{kind}[{index}].path", dataset.path, is_data=True)
    for index, service in enumerate(job.spec.services):
        for option in _path_options(service):
            text = service.options[option]
            yield JobPath(f"spec.services[{index}].options.{option}", text, is_data=False)
    if job.spec.checkpoint.init_from:
        yield JobPath("spec.checkpoint.initFrom", job.spec.checkpoint.init_from, is_data=False)


def missing_paths(job: RLJob, folder: Path) -> list[JobPath]:
    """Paths that must be local and are not there."""
    return [path for path in paths_of(job) if path.looks_local and not path.exists(folder)]


def with_absolute_paths(job: RLJob, folder: Path) -> RLJob:
    """The job with every path that exists beside its YAML made absolute, so that workers may run anywhere."""
    found = {path.text: os.path.abspath(path.beside(folder)) for path in paths_of(job) if path.exists(folder)}
    return replace_paths(job, lambda text: found.get(text, text))


def moved_to(job: RLJob, folder: Path, elsewhere: Path) -> RLJob:
    """The job as a YAML file in `elsewhere` says it: relative paths that exist beside `folder` lead there from here."""
    found = {
        path.text: os.path.relpath(path.beside(folder).absolute(), elsewhere.absolute())
        for path in paths_of(job)
        if path.exists(folder) and not path.text.startswith(("/", "~"))
    }
    return replace_paths(job, lambda text: found.get(text, text))


def replace_paths(job: RLJob, replacement: Callable[[str], str]) -> RLJob:
    """The job with `replacement` applied to each of its input paths."""
    spec = job.spec

    def moved(items: tuple[Located, ...]) -> tuple[Located, ...]:
        return tuple(item.model_copy(update={"path": replacement(item.path)}) for item in items)

    data = spec.data.model_copy(update={"train": moved(spec.data.train), "validation": moved(spec.data.validation)})
    init_from = spec.checkpoint.init_from
    checkpoint = spec.checkpoint.model_copy(update={"init_from": replacement(init_from) if init_from else None})

    def moved_service(service: ServiceSpec) -> ServiceSpec:
        options = {option: replacement(service.options[option]) for option in _path_options(service)}
        return service.model_copy(update={"options": {**service.options, **options}})

    services = tuple(moved_service(service) for service in spec.services)
    changed = {"models": moved(spec.models), "data": data, "checkpoint": checkpoint, "services": services}
    return job.model_copy(update={"spec": spec.model_copy(update=changed)})


def _path_options(service: ServiceSpec) -> list[str]:
    """Options of a shipped application that are paths; what those of the user's own mean is not known here."""
    if not service.run.startswith(PREFIX):
        return []
    return [name for name in ("path", "tokenizer") if isinstance(service.options.get(name), str)]
