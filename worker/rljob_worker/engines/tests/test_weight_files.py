"""Where weights are found, what is refused by name, and what a rank reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM

from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.models import WeightFiles, empty_policy, empty_value_model, load_policy
from rljob_worker.engines.parallel.shards import local_part
from rljob_worker.engines.tests.builders import mesh_of_all, write_model
from rljob_worker.engines.tests.ranks import run_ranks
from rljob_worker.errors import BadData, InvalidJob

CPU = torch.device("cpu")
SINGLE = "model.safetensors"


def rewrite(path: str, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(Path(path) / SINGLE)
    change(tensors)
    save_file(tensors, Path(path) / SINGLE)


def loaded(path: str) -> dict[str, torch.Tensor]:
    return dict(load_policy(path, torch.float32, CPU).named_parameters())


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_is_what_transformers_loads(tmp_path: Path, tied: bool) -> None:
    path = write_model(tmp_path, tie_word_embeddings=tied)
    expected = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    ours = load_policy(path, torch.float32, CPU)
    assert (ours.lm_head.weight is ours.model.embed_tokens.weight) == tied
    theirs = dict(expected.named_parameters())
    assert all(torch.equal(parameter, theirs[name]) for name, parameter in ours.named_parameters())
    assert all(torch.equal(ours.get_buffer(name), buffer) for name, buffer in expected.named_buffers())


def test_a_tensor_that_no_file_has_is_named(tmp_path: Path) -> None:
    path = write_model(tmp_path)
    rewrite(path, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(BadData, match="its files have no model.layers.1.mlp.up_proj.weight; fetch"):
        loaded(path)


def test_tensors_that_the_model_has_no_use_for_are_named(tmp_path: Path) -> None:
    path = write_model(tmp_path)
    rewrite(path, lambda tensors: tensors.update({f"model.layers.{i}.more": torch.zeros(1) for i in range(5)}))
    with pytest.raises(BadData, match=r"have model.layers.0.more, .* and 2 more, which Qwen3ForCausalLM has no"):
        loaded(path)
    # what old files hold of buffers means nothing, and a critic has no use for a head
    path = write_model(tmp_path)
    rewrite(path, lambda tensors: tensors.update({"model.rotary_emb.inv_freq": torch.zeros(4)}))
    assert loaded(path)
    WeightFiles.find(path).fill(empty_value_model(path, torch.float32).to_empty(device=CPU))


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    path = write_model(tmp_path)
    rewrite(path, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(7)}))
    with pytest.raises(BadData, match=r"norm.weight is \[7\] in model.safetensors, but config.json makes it \[32\]"):
        loaded(path)


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn, torch.bool, torch.complex64])
def test_numbers_that_are_no_weights_are_named(tmp_path: Path, kind: torch.dtype) -> None:
    """Codes of a model that was quantized would be read as its weights."""
    path = write_model(tmp_path)
    rewrite(path, lambda tensors: tensors.update({"model.norm.weight": torch.ones(32).to(kind)}))
    with pytest.raises(
        BadData, match=r"model.norm.weight is [A-Z0-9_]+ in model.safetensors, and weights are F64, F32"
    ):
        loaded(path)


@pytest.mark.parametrize("index", ["[]", "null", "{}", '{"weight_map": ["a"]}', '{"weight_map": {"a": 3}}', "{"])
def test_what_is_no_index_is_named(tmp_path: Path, index: str) -> None:
    path = write_model(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(BadData, match="cannot read its weights in model.safetensors.index.json: .*; fetch the model"):
        loaded(path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model-q4.gguf", "consolidated.00.pth", "tf_model.h5"])
def test_weights_in_another_format_are_named(tmp_path: Path, name: str) -> None:
    path = write_model(tmp_path)
    (tmp_path / SINGLE).rename(tmp_path / name)
    with pytest.raises(InvalidJob, match=rf"in another format \({name}\); save them as model.safetensors"):
        loaded(path)


def test_files_of_an_index_that_are_absent_or_fetched_half_are_named(tmp_path: Path) -> None:
    path = write_model(tmp_path)
    expected = loaded(path)
    tensors = sorted(load_file(tmp_path / SINGLE).items())
    places = {}
    for number, part in enumerate((tensors[:9], tensors[9:])):
        save_file(dict(part), tmp_path / f"part-{number}.safetensors")
        places |= dict.fromkeys(dict(part), f"part-{number}.safetensors")
    (tmp_path / SINGLE).unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded(path).items())
    half = tmp_path / "part-1.safetensors"
    half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])
    with pytest.raises(BadData, match="cannot read its weights in part-1.safetensors: .*; fetch the model again"):
        loaded(path)
    half.unlink()
    with pytest.raises(BadData, match="names part-1.safetensors, which is not there"):
        loaded(path)


def test_an_empty_model_has_buffers_but_no_memory_for_parameters(tmp_path: Path) -> None:
    model = empty_policy(write_model(tmp_path), torch.float32)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert not any(buffer.is_meta for buffer in model.buffers())
    torch.nn.Linear(1, 1).weight.sum().item()  # what is made afterwards is real


class Copied(TorchFunctionMode):
    """Elements that were copied while this was on. Slices of a mapped file are none until then."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.Tensor.copy_:
            self.elements += out.numel()
        return out


def fill_shards(rank: int, path: str) -> dict[str, Any]:
    model = empty_policy(path, torch.float32)
    engine = FSDPEngine(model, TrainSettings(trainable=False, min_unit_bytes=0), CPU, mesh_of_all())
    with Copied() as copied:
        WeightFiles.find(path).fill(engine.model)
    whole = {name: tensor.clone() for name, tensor in engine.weights()}
    own = sum(local_part(parameter).numel() for parameter in engine.model.parameters())
    return {"whole": whole, "copied": copied.elements, "own": own}


@pytest.mark.parametrize("tied", [False, True])
def test_every_rank_reads_its_own_rows_and_no_more(tmp_path: Path, tied: bool) -> None:
    path = write_model(tmp_path / "model", tie_word_embeddings=tied)
    expected = loaded(path)
    result = run_ranks(5, fill_shards, tmp_path / "ranks", path)
    for rank in result:
        assert rank["whole"].keys() == expected.keys()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in rank["whole"].items())
    assert [rank["copied"] for rank in result] == [rank["own"] for rank in result]
    assert sum(rank["own"] for rank in result) == sum(tensor.numel() for tensor in expected.values())
