"""Relative paths of a job mean files next to its YAML; anything that is not there is left as it is (a hub id)."""

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rljob_api.catalogue.services import PREFIX
from rljob_api.catalogue.stages import REWARD_MODEL
from rljob_api.v1alpha1 import DatasetSpec, ModelSpec, RewardSpec, RLJob, RolloutSpec, ServiceSpec
from rljob_api.vocabulary.data_url import scheme_of

Located = TypeVar("Located", ModelSpec, DatasetSpec)
Asked = TypeVar("Asked", ServiceSpec, RewardSpec)

_DATA_ENDINGS = {".parquet", ".json", ".jsonl", ".csv", ".arrow", ".gz", ".zst"}


@dataclass(frozen=True, slots=True)
class JobPath:
    """One path in a job: where it stands, what it says."""

    place: str
    text: str
    is_data: bool
    is_run: bool = False
    """Whether only a run's folder can be meant, which no hub has."""

    @property
    def is_url(self) -> bool:
        """Whether it is in a store: nothing about it is known here."""
        return scheme_of(self.text) is not None

    @property
    def looks_local(self) -> bool:
        """Whether it cannot be a name on a hub: `./model`, `../x`, `/x`, `~/x`, `data/train.parquet`, `data/*.json`."""
        if self.is_url:
            return False
        if self.is_run or self.text.startswith((".", "/", "~")):
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
    owners: dict[str, Sequence[ServiceSpec | RewardSpec]] = {"services": job.spec.services, "rewards": job.spec.rewards}
    for kind, specs in owners.items():
        for index, owner in enumerate(specs):
            for option in _path_options(owner):
                yield JobPath(f"spec.{kind}[{index}].options.{option}", owner.options[option], is_data=False)
    simulator = job.spec.rollout.simulator
    if simulator is not None and simulator.video is not None and simulator.video.path:
        yield JobPath("spec.rollout.simulator.video.path", simulator.video.path, is_data=False)
    if job.spec.checkpoint.init_from:
        yield JobPath("spec.checkpoint.initFrom", job.spec.checkpoint.init_from, is_data=False, is_run=True)


def missing_paths(job: RLJob, folder: Path) -> list[JobPath]:
    """Paths that must be local and are not there."""
    return [path for path in paths_of(job) if path.looks_local and not path.exists(folder)]


def with_absolute_paths(job: RLJob, folder: Path) -> RLJob:
    """The job with every path that exists next to its YAML made absolute, so that workers may run anywhere."""
    result = {path.text: os.path.abspath(path.beside(folder)) for path in paths_of(job) if path.exists(folder)}
    return replace_paths(job, lambda text: result.get(text, text))


def moved_to(job: RLJob, folder: Path, elsewhere: Path) -> RLJob:
    """The job as a YAML file in `elsewhere` says it: relative paths that exist in `folder` lead there from here."""
    result = {
        path.text: os.path.relpath(path.beside(folder).absolute(), elsewhere.absolute())
        for path in paths_of(job)
        if path.exists(folder) and not path.text.startswith(("/", "~"))
    }
    return replace_paths(job, lambda text: result.get(text, text))


def replace_paths(job: RLJob, replacement: Callable[[str], str]) -> RLJob:
    """The job with `replacement` applied to each of its input paths."""
    spec = job.spec

    def moved(items: tuple[Located, ...]) -> tuple[Located, ...]:
        return tuple(item.model_copy(update={"path": replacement(item.path)}) for item in items)

    data = spec.data.model_copy(update={"train": moved(spec.data.train), "validation": moved(spec.data.validation)})
    init_from = spec.checkpoint.init_from
    checkpoint = spec.checkpoint.model_copy(update={"init_from": replacement(init_from) if init_from else None})

    def with_options(owners: tuple[Asked, ...]) -> tuple[Asked, ...]:
        options = (
            {path_option: replacement(owner.options[path_option]) for path_option in _path_options(owner)}
            for owner in owners
        )
        both = zip(owners, options, strict=True)
        return tuple(owner.model_copy(update={"options": {**owner.options, **own}}) for owner, own in both)

    rollout = _with_encoder(spec.rollout, replacement)
    changed = {"models": moved(spec.models), "data": data, "checkpoint": checkpoint, "rollout": rollout}
    changed |= {"services": with_options(spec.services), "rewards": with_options(spec.rewards)}
    return job.model_copy(update={"spec": spec.model_copy(update=changed)})


def _with_encoder(rollout: RolloutSpec, replacement: Callable[[str], str]) -> RolloutSpec:
    simulator = rollout.simulator
    if simulator is None or simulator.video is None or not simulator.video.path:
        return rollout
    video = simulator.video.model_copy(update={"path": replacement(simulator.video.path)})
    return rollout.model_copy(update={"simulator": simulator.model_copy(update={"video": video})})


def _path_options(owner: ServiceSpec | RewardSpec) -> list[str]:
    """Options of what is shipped that are paths; what those of the user's own mean is not known here."""
    if not owner.run.startswith(PREFIX) and owner.run != REWARD_MODEL:
        return []
    return [name for name in ("path", "tokenizer") if isinstance(owner.options.get(name), str)]
