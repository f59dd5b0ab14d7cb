"""Model directories out of checkpoints, bucket by bucket, beside what stock transformers and peft make of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.fsdp.export.adapter_files import export_adapter
from rljob_worker.engines.fsdp.export.directory import export_directory
from rljob_worker.engines.fsdp.export.tensor_file import write_tensors
from rljob_worker.engines.models import Adapter, DrawnWeights, empty_policy, load_policy, random_policy
from rljob_worker.engines.tests.builders import export_of, save, write_config, write_model
from rljob_worker.engines.tests.peak import Peak
from rljob_worker.errors import InvalidJob, StorageError

CPU = torch.device("cpu")
FROZEN = TrainSettings(trainable=False)
NO_HALF = 0.5 + 2**-9
"""Which in BFloat16 is a half."""
DEEP = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 24}


def saved(path: str, directory: Path, settings: TrainSettings = FROZEN) -> FSDPEngine:
    """A checkpoint of the weights in the files of a model."""
    engine = FSDPEngine(load_policy(path, settings.master_dtype, CPU), settings, CPU)
    save(engine, directory)
    return engine


def fill(engine: FSDPEngine, value: float) -> None:
    assert engine.optimizer is not None
    with torch.no_grad():
        for parameter in engine.optimizer.parameters.values():
            parameter.fill_(value)


def test_memory_is_that_of_a_bucket_whatever_the_size_of_the_model(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model", **DEEP)
    engine = saved(path, tmp_path / "checkpoint")
    whole = sum(parameter.nbytes for parameter in engine.model.parameters())
    largest = max(parameter.nbytes for parameter in engine.model.parameters())
    with Peak() as exporting:
        export_directory(
            empty_policy(path, torch.float32),
            tmp_path / "checkpoint",
            tmp_path / "out",
            torch.float32,
            bucket_bytes=largest,
        )
    # a bucket, a shard of one of its tensors as it was written, and what building a model without memory takes
    assert largest <= exporting.bytes(whole) < 0.1 * whole
    source, exported = (load_file(tmp_path / name / "model.safetensors") for name in ("model", "out"))
    assert source.keys() == exported.keys()
    assert all(torch.equal(source[name], exported[name]) for name in source)


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe", "gpt2", "gemma2"])
def test_files_are_of_a_size_and_listed_as_transformers_reads_them(tmp_path: Path, kind: str) -> None:
    path = write_model(tmp_path / "model", kind)
    engine = saved(path, tmp_path / "checkpoint")
    export_of(engine, tmp_path / "out", checkpoint=tmp_path / "checkpoint", file_bytes=20_000, bucket_bytes=5_000)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 3 and files[-1] == f"model-{len(files):05d}-of-{len(files):05d}.safetensors"
    assert index["metadata"]["total_size"] == sum(parameter.nbytes for parameter in engine.model.parameters())
    source = load_file(tmp_path / "model" / "model.safetensors")
    for file in files:
        with safe_open(tmp_path / "out" / file, framework="pt") as opened:
            assert opened.metadata() == {"format": "pt"}
        result = load_file(tmp_path / "out" / file)
        assert result.keys() == {name for name, place in index["weight_map"].items() if place == file}
        assert all(torch.equal(tensor, source[name]) for name, tensor in result.items())
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert all(torch.equal(tensor, engine.model.get_parameter(name)) for name, tensor in stock.named_parameters())


@pytest.mark.parametrize("precision", ["Float32", "BFloat16", "Float64"])
def test_weights_are_rounded_to_the_precision_of_the_job(tmp_path: Path, precision: str) -> None:
    settings = TrainSettings(precision=precision)
    path = write_config(tmp_path / "model")
    engine = FSDPEngine(random_policy(path, settings.master_dtype, 0), settings, CPU)
    export_of(engine, tmp_path / "out", file_bytes=20_000)
    result: dict[str, torch.Tensor] = {}
    for file in (tmp_path / "out").glob("*.safetensors"):
        result |= load_file(file)
    for name, tensor in engine.weights(settings.master_dtype):
        assert result[name].dtype == settings.dtype and torch.equal(result[name], tensor.to(settings.dtype)), name
    index, config = (
        json.loads((tmp_path / "out" / name).read_text()) for name in ("model.safetensors.index.json", "config.json")
    )
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in result.values())
    assert config["dtype"] == str(settings.dtype).removeprefix("torch.")


@pytest.mark.parametrize("kind", ["qwen3", "phi3"])
@pytest.mark.parametrize("precision", ["Float32", "BFloat16"])
def test_an_adapter_is_merged_a_bucket_at_a_time(tmp_path: Path, kind: str, precision: str) -> None:
    """phi3 has no q_proj of its own, and only the other target is adapted."""
    path = write_model(tmp_path / "model", kind)
    targets = ("q_proj", "down_proj") if kind == "qwen3" else ("down_proj",)
    settings = TrainSettings(precision=precision)
    adapter = Adapter(path, rank=2, alpha=4.0, targets=targets)
    engine = FSDPEngine(load_policy(path, settings.dtype, CPU), settings, CPU, adapter=adapter)
    fill(engine, NO_HALF)
    export_of(engine, tmp_path / "out", bucket_bytes=4096)
    before = load_file(tmp_path / "model" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "out" / "model.safetensors").items():
        is_adapted = any(f".{target}." in name for target in targets)
        # twice the product of B [., 2] and A [2, .], which are not rounded before: 1 + 1/128 + 1/65536
        expected = before[name].to(settings.dtype).float() + (2 * 2 * NO_HALF**2 if is_adapted else 0.0)
        assert torch.equal(tensor, expected.to(settings.dtype)), name


def test_an_adapter_of_a_model_that_was_drawn_is_merged_into_what_was_drawn(tmp_path: Path) -> None:
    path = write_config(tmp_path / "model")
    adapter = Adapter(path, rank=2, alpha=4.0, targets=("q_proj",))
    engine = FSDPEngine(random_policy(path, torch.float32, 3), TrainSettings(), CPU, adapter=adapter)
    fill(engine, 0.5)
    save(engine, tmp_path / "checkpoint")
    empty = empty_policy(path, torch.float32)
    base = DrawnWeights.of(empty, 3)
    export_directory(empty, tmp_path / "checkpoint", tmp_path / "out", torch.float32, adapter=adapter, base=base)
    file = load_file(tmp_path / "out" / "model.safetensors")
    for name, tensor in random_policy(path, torch.float32, 3).named_parameters():
        assert torch.equal(file[name], tensor + (1.0 if ".q_proj." in name else 0.0)), name


@pytest.mark.parametrize("targets", [("q_proj",), ()], ids=["one", "all there are"])
def test_an_adapter_of_a_checkpoint_is_what_peft_loads(tmp_path: Path, targets: tuple[str, ...]) -> None:
    from peft import PeftModel

    path = write_model(tmp_path / "model")
    engine = FSDPEngine(
        load_policy(path, torch.float32, CPU), TrainSettings(), CPU, adapter=Adapter(path, 2, 4.0, targets)
    )
    fill(engine, 0.5)
    save(engine, tmp_path / "checkpoint")
    export_adapter(tmp_path / "checkpoint", tmp_path / "adapter")
    # peft reads other names, too; others who load adapters do not
    names = load_file(tmp_path / "adapter" / "adapter_model.safetensors").keys()
    matched = [
        re.fullmatch(r"base_model\.model\.model\.layers\.[01]\.\w+\.(\w+)\.lora_[AB]\.weight", name) for name in names
    ]
    kinds = {match[1] for match in matched if match}
    assert all(matched) and len(names) == 4 * len(kinds) and (len(kinds) == 7 or kinds == set(targets))
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert set(config["target_modules"]) == kinds
    export_of(engine, tmp_path / "merged", checkpoint=tmp_path / "checkpoint")
    base = AutoModelForCausalLM.from_pretrained(path)
    theirs = dict(PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload().named_parameters())
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert all(torch.allclose(tensor, theirs[name], atol=1e-6) for name, tensor in ours.named_parameters())


def test_an_adapter_that_cannot_be_written_is_a_storage_error_with_the_place(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model")
    model = load_policy(path, torch.float32, CPU)
    save(FSDPEngine(model, TrainSettings(), CPU, adapter=Adapter(path, 2, 4.0, ())), tmp_path / "checkpoint")
    place = tmp_path / "file"
    place.touch()
    with pytest.raises(StorageError, match=f"export to {place}: cannot be written: .*File exists"):
        export_adapter(tmp_path / "checkpoint", place)


def test_a_checkpoint_of_another_model_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path, smaller = write_model(tmp_path / "model"), write_config(tmp_path / "smaller", num_hidden_layers=1)
    saved(path, tmp_path / "checkpoint")
    with pytest.raises(InvalidJob, match=r"of another model: it holds 11 tensors .* model.layers.1.input_layernorm"):
        export_directory(empty_policy(smaller, torch.float32), tmp_path / "checkpoint", tmp_path / "out", torch.float32)
    assert not (tmp_path / "out").exists()


def test_a_file_is_bit_for_bit_what_the_library_reads(tmp_path: Path) -> None:
    tensors = {"b": torch.randn(3, 5), "a": torch.randn(7), "empty": torch.empty(0, 4)}
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        cast = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        file = tmp_path / f"{dtype}.safetensors"
        write_tensors(file, {name: tuple(item.shape) for name, item in tensors.items()}, dtype, tensors.items())
        result = load_file(file)
        assert result.keys() == cast.keys() and all(torch.equal(result[name], cast[name]) for name in cast)
        assert int.from_bytes(file.read_bytes()[:8], "little") % 8 == 0  # where numbers of any type may begin
