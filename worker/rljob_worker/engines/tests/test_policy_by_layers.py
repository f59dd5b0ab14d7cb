"""A policy that is read layer by layer: its tensors, the forward pass beside them, and the memory of both."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from rljob_worker.batch import Column
from rljob_worker.engines.micro_batch import MicroBatch, response_last_layer
from rljob_worker.engines.models import checkpoint_tensors, load_policy, random_policy
from rljob_worker.engines.models.families import FAMILIES, VISION_FAMILIES
from rljob_worker.engines.models.policy_by_layers import LayeredPass, PolicyByLayers
from rljob_worker.engines.packing import pack
from rljob_worker.engines.prompt_pictures import RowPictures
from rljob_worker.engines.tests.builders import write_config, write_model
from rljob_worker.engines.tests.seeing import encoded, reader_of, showing, text, write_vision_model
from rljob_worker.errors import BadData
from rljob_worker.vision.pictures import PictureList

CPU = torch.device("cpu")
PROMPTS = Column.ragged([np.arange(2, 9), np.arange(3, 6)])


def next_logits(model: PreTrainedModel) -> torch.Tensor:
    rows = MicroBatch.build(pack(PROMPTS, Column.ragged([np.zeros(1, np.int64)] * 2)), CPU)
    with torch.inference_mode():
        return response_last_layer(model, rows).logits(slice(None))


def named(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    return dict(checkpoint_tensors((name, item.detach()) for name, item in model.named_parameters()))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_tensors_and_a_pass_beside_them_are_those_of_the_whole_model(tmp_path: Path, kind: str, tied: bool) -> None:
    path = write_model(tmp_path, kind, tie_word_embeddings=tied)
    whole, policy = load_policy(path, torch.float32, CPU), PolicyByLayers.of_files(path, torch.float32)
    beside = LayeredPass(next_logits)
    read, expected = dict(policy.tensors(beside)), named(whole)
    assert read.keys() == expected.keys()
    assert all(torch.equal(read[name], expected[name]) for name in expected)
    assert beside.result is not None and torch.equal(beside.result, next_logits(whole))
    assert all(parameter.is_meta for parameter in policy.model.parameters())


@pytest.mark.parametrize("kind", sorted(VISION_FAMILIES))
def test_a_decoder_that_adds_features_between_its_layers_is_computed_whole(tmp_path: Path, kind: str) -> None:
    path = write_vision_model(tmp_path, kind)
    whole, policy = load_policy(path, torch.float32, CPU), PolicyByLayers.of_files(path, torch.float32)
    reader, picture = reader_of(whole), encoded(4, 4)
    prompt = np.array(showing(picture, text(3), kind=kind))
    shown = reader.prompt_pictures(prompt, PictureList.pack([picture]), 0)

    def logits(model: PreTrainedModel) -> torch.Tensor:
        pictures = RowPictures(np.zeros(1, np.int64), lambda row: shown)
        rows = pack(Column.ragged([prompt]), Column.ragged([np.zeros(1, np.int64)]), pictures=pictures)
        with torch.inference_mode():
            return response_last_layer(model, MicroBatch.build(rows, CPU)).logits(slice(None))

    beside = LayeredPass(logits)
    read, expected = dict(policy.tensors(beside)), named(whole)
    assert read.keys() == expected.keys() and all(torch.equal(read[name], expected[name]) for name in expected)
    assert beside.result is not None and torch.equal(beside.result, logits(whole))


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe"])
def test_a_random_policy_is_the_same_drawn_by_layers(tmp_path: Path, kind: str) -> None:
    path = write_config(tmp_path, kind)
    read = dict(PolicyByLayers.random(path, torch.bfloat16, 3).tensors())
    expected = named(random_policy(path, torch.bfloat16, 3))
    assert read.keys() == expected.keys() and all(torch.equal(read[name], expected[name]) for name in expected)


def test_a_pass_computes_in_the_precision_of_the_job(tmp_path: Path) -> None:
    path = write_model(tmp_path, "qwen3_moe")
    beside = LayeredPass(next_logits)
    for _ in PolicyByLayers.of_files(path, torch.bfloat16).tensors(beside):
        pass
    assert beside.result is not None and torch.equal(beside.result, next_logits(load_policy(path, torch.bfloat16, CPU)))


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    path = write_model(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"model.norm.weight": torch.zeros(7)}, tmp_path / "model.safetensors")
    with pytest.raises(BadData, match=r"norm.weight is \[7\] in model.safetensors, but config.json makes it \[32\]"):
        list(PolicyByLayers.of_files(path, torch.float32).tensors())


def bytes_outside_of_files(tensors: Iterable[torch.Tensor]) -> int:
    """Of those that have memory, and not that of a mapped file of weights."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "safetensors" in line]
    spans = [[int(end, 16) for end in line[0].split("-")] for line in lines]
    own = [item for item in tensors if not item.is_meta]
    return sum(item.nbytes for item in own if not any(low <= item.data_ptr() < high for low, high in spans))


def test_tensors_are_pages_of_the_files(tmp_path: Path) -> None:
    path = write_model(tmp_path, "qwen3_moe")
    read = dict(PolicyByLayers.of_files(path, torch.bfloat16).tensors())
    assert len(read) > 40 and bytes_outside_of_files(read.values()) == 0


@pytest.mark.parametrize(("dtype", "what"), [(torch.float32, "experts."), (torch.bfloat16, "")])
def test_what_computes_is_one_layer_and_its_memory_is_what_files_do_not_have_so(
    tmp_path: Path, dtype: torch.dtype, what: str
) -> None:
    """Files are in Float32, with experts one by one."""
    policy = PolicyByLayers.of_files(write_model(tmp_path, "qwen3_moe"), dtype)
    inside, sizes, computing = policy.model.model.layers, list[int](), list[int]()

    def work(model: PreTrainedModel) -> torch.Tensor:
        sizes.append(bytes_outside_of_files(model.parameters()))
        computing.append(sum(not next(layer.parameters()).is_meta for layer in inside))
        return next_logits(model)

    first = [(name, item) for name, item in policy.model.named_parameters() if ".layers.1." not in name]
    expected = sum(item.nbytes for name, item in first if what in name)
    for _ in policy.tensors(LayeredPass(work)):
        pass
    assert sizes == [expected] * 2 and computing == [1] * 2
