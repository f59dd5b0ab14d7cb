"""The safetensors files of a model: which tensor lies where, and each rank's rows of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PreTrainedModel

from rljob_worker.engines.models.adapter import base_name, is_of_adapter
from rljob_worker.engines.models.checkpoint_names import Named, TensorPart, TensorPartsOf, parts_of
from rljob_worker.engines.models.sources.hub_snapshots import fetched
from rljob_worker.engines.models.sources.mirror import origin_of
from rljob_worker.engines.models.sources.remote_tensors import RemoteTensors
from rljob_worker.engines.models.value_model import CLASSIFIER_HEAD, VALUE_HEAD, ValueModel, backbone_of, clear_head
from rljob_worker.engines.models.weight_listing import file_list, files_with_weights, reading
from rljob_worker.engines.parallel.split import UNSPLIT, Split
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.storage.paths import StoragePath

_FORMATS = ("F64", "F32", "F16", "BF16")
"""Formats of numbers that are what they say: codes of quantized weights would be read as weights."""
_ALWAYS_COMPUTED = re.compile(r"rotary_emb\.inv_freq$|\battn\.(masked_)?bias$")
"""What old files hold of buffers."""


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """Where every tensor of a model is."""

    path: str
    """As the job has it."""
    places: Mapping[str, StoragePath]
    """The file of each tensor, by the name it has there."""
    head: StoragePath | None = None
    """The file of a critic's head."""

    @staticmethod
    def find(path: str) -> WeightFiles:
        """Find the files of a directory or a hub name. Raises InvalidJob when there are no safetensors, BadData when
        they are damaged."""
        directory = origin_of(Path(path)) if Path(path).is_dir() else fetched(path)
        head = directory / VALUE_HEAD
        places: dict[str, StoragePath] = {}
        for file in files_with_weights(path, directory):
            with reading(path, file), _opened(file) as opened:
                places |= dict.fromkeys(opened.keys(), file)
        return WeightFiles(path, places, head if head.is_file() else None)

    def fill(
        self,
        model: torch.nn.Module,
        split: Split = UNSPLIT,
        parts_of: TensorPartsOf = parts_of,
        *,
        is_pipeline_stage: bool = False,
    ) -> None:
        """Read this rank's part of every parameter: its rows, of its part where it is split; is_pipeline_stage: of
        some of the layers. Raises BadData by name for one that no file has or that has another shape, and for
        tensors that the model has no use for."""
        backbone = backbone_of(model)
        matched = self.matched(
            backbone, split, parts_of, is_policy=not (isinstance(model, ValueModel) or is_pipeline_stage)
        )
        matched.fill({name: tensor for name, tensor in backbone.named_parameters() if name in matched.names})
        if isinstance(model, ValueModel):
            self._fill_head(model)

    def matched(
        self,
        model: PreTrainedModel,
        split: Split = UNSPLIT,
        parts_of: TensorPartsOf = parts_of,
        *,
        is_policy: bool = True,
    ) -> Matched:
        """What of the files each parameter is made of, except those of an adapter. A tied one has several names, of
        which one is enough; the files of a backbone leave its prefix out, those of a policy have it."""
        first = {id(item): name for name, item in model.named_parameters()}

        def parts(name: str, tensor: torch.Tensor) -> Iterator[TensorPart]:
            return parts_of(name, tensor, split)

        spellings: dict[str, list[list[str]]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if is_of_adapter(name):
                continue
            here = [_spellings(part.name, model.base_model_prefix) for part in parts(base_name(name), parameter)]
            there = spellings.setdefault(first[id(parameter)], [[] for _ in here])
            for known, more in zip(there, here, strict=True):
                known += more
        result = {
            name: [next((item for item in known if item in self.places), "") for known in parts_known]
            for name, parts_known in spellings.items()
        }
        self._require_all(model, spellings, result, is_policy=is_policy)
        return Matched(self, result, parts)

    def _require_all(
        self,
        model: PreTrainedModel,
        spellings: Mapping[str, list[list[str]]],
        result: Mapping[str, list[str]],
        *,
        is_policy: bool,
    ) -> None:
        """Raises BadData for a part that no file has, and for tensors of a policy that none of its parts is."""
        missing = [
            known[0] for name in result for known, there in zip(spellings[name], result[name], strict=True) if not there
        ]
        if missing:
            raise BadData(f"model path {self.path!r}: its files have no {file_list(missing)}; fetch the model again")
        known = {item for parts in spellings.values() for part in parts for item in part}
        if is_policy and (extra := [name for name in self.places if name not in known and _matters(name, model)]):
            raise BadData(
                f"model path {self.path!r}: its files have {file_list(extra)}, which {type(model).__name__} has no use "
                "for; config.json is of another model than the weights"
            )

    def read(self, targets: Mapping[str, TensorPart]) -> None:
        """Parts of parameters, by the names of their tensors in the files. Raises BadData for another shape."""
        for file, parts in self._by_file(targets):
            self._read(file, parts)

    def mapped(self, targets: Mapping[str, TensorPart]) -> dict[str, torch.Tensor]:
        """Those tensors as they are there, whole, for as long as they are kept. Of a file on a disk they are its pages,
        which all processes of a machine share. Raises BadData for another shape."""
        result = {}
        for file, parts in self._by_file(targets):
            with reading(self.path, file), _opened(file) as opened:
                for name, part in parts.items():
                    there = opened.get_slice(name)
                    is_turned = self._part_there(name, part, there, file) is not part
                    result[name] = there[:].transpose(1, 2) if is_turned else there[:]
        return result

    def _by_file(self, targets: Mapping[str, TensorPart]) -> Iterator[tuple[StoragePath, dict[str, TensorPart]]]:
        by_file: dict[StoragePath, dict[str, TensorPart]] = {}
        for name, part in targets.items():
            by_file.setdefault(self.places[name], {})[name] = part
        yield from sorted(by_file.items(), key=lambda item: str(item[0]))

    def _read(self, file: StoragePath, targets: Mapping[str, TensorPart]) -> None:
        with reading(self.path, file), _opened(file) as opened, torch.no_grad():
            for name, part in targets.items():
                there = opened.get_slice(name)
                self._part_there(name, part, there, file).read(there)

    def _part_there(self, name: str, part: TensorPart, there: Any, file: StoragePath) -> TensorPart:
        """The part, or the part turned, whichever has the shape of a tensor of a file. Raises BadData for neither, and
        for what is no weights."""
        if there.get_dtype() not in _FORMATS:
            raise BadData(
                f"model path {self.path!r}: {name} is {there.get_dtype()} in {file.name}, and weights are "
                f"{', '.join(_FORMATS)}; if they are quantized, use the model they were made of"
            )
        shape = tuple(there.get_shape())
        if shape == part.shape:
            return part
        if (turned := part.turned) is not None and shape == turned.shape:
            return turned
        raise BadData(
            f"model path {self.path!r}: {name} is {list(shape)} in {file.name}, but config.json makes it "
            f"{list(part.shape)}; config.json is of another model than the weights"
        )

    def _fill_head(self, model: ValueModel) -> None:
        """A classifier's from among the tensors, a critic's from its file, else zero."""
        parts = [part for named in model.value_head.named_parameters() for part in parts_of(*named)]
        if model.is_classifier:
            named = {f"{CLASSIFIER_HEAD}.{part.name}": part for part in parts}
            if missing := [name for name in named if name not in self.places]:
                raise InvalidJob(
                    f"model path {self.path!r}: its files have no {file_list(missing)}, the head of a sequence "
                    "classifier; name a model that was trained as one"
                )
            for name, part in named.items():
                self._read(self.places[name], {name: part})
        elif self.head is not None:
            self._read(self.head, {part.name: part for part in parts})
        else:
            clear_head(model)


@dataclass(frozen=True, slots=True)
class Matched:
    """What each parameter of a model is made of."""

    files: WeightFiles
    names: Mapping[str, Sequence[str]]
    """Names of the tensors in the files, by parameter: those of its parts in order."""
    parts_of: Callable[[str, torch.Tensor], Iterator[TensorPart]]

    def fill(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Some of them, or tensors of their shapes, by name. Raises BadData."""
        self.files.read({there: part for name, item in parameters.items() for there, part in self._parts(name, item)})

    def mapped(self, parameters: Mapping[str, torch.Tensor]) -> dict[str, list[Named]]:
        """What some of them are made of, by name: tensors of a checkpoint, see `WeightFiles.mapped`. Raises BadData."""
        parts = {name: list(self._parts(name, item)) for name, item in parameters.items()}
        whole = self.files.mapped(dict(pair for pairs in parts.values() for pair in pairs))
        return {name: [(part.name, whole[there]) for there, part in pairs] for name, pairs in parts.items()}

    def _parts(self, name: str, parameter: torch.Tensor) -> Iterator[tuple[str, TensorPart]]:
        return zip(self.names[name], self.parts_of(base_name(name), parameter), strict=True)


def _spellings(name: str, prefix: str) -> list[str]:
    """How files may call a parameter: as a whole policy's, or as its backbone's; older ones have the layers of a model
    that sees where one that does not has them."""
    names = [name, name.removeprefix(f"{prefix}.") if name.startswith(f"{prefix}.") else f"{prefix}.{name}"]
    return names + [item.replace("language_model.", "", 1) for item in names if "language_model." in item]


def _matters(name: str, model: PreTrainedModel) -> bool:
    ignored = model._keys_to_ignore_on_load_unexpected or ()
    return not (_ALWAYS_COMPUTED.search(name) or any(re.search(pattern, name) for pattern in ignored))


@contextmanager
def _opened(file: StoragePath) -> Iterator[Any]:
    """The tensors of a file, on a disk or in a store."""
    if isinstance(file, Path):
        with safe_open(file, framework="pt") as opened:
            yield opened
    else:
        yield RemoteTensors.open(file)
