"""Model shapes from configs."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rljob_worker.engines.tests.builders import CONFIGS, write_config
from rljob_worker.model_shapes import configs_in, shapes_of
from rljob_worker.tests.documents import job


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_a_shape_has_the_parameters_of_the_model(kind: str, tied: bool, tmp_path: Path) -> None:
    write_config(tmp_path / "model", kind, tie_word_embeddings=tied)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIGS[kind](tie_word_embeddings=tied))
    (shape,) = shapes_of(job(models=[{"name": "actor", "path": "model"}]).spec, configs_in(tmp_path)).values()
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_biases_that_a_config_asks_for_count(tmp_path: Path) -> None:
    write_config(tmp_path / "model", "llama", attention_bias=True, mlp_bias=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIGS["llama"](attention_bias=True, mlp_bias=True))
    (shape,) = shapes_of(job(models=[{"name": "actor", "path": "model"}]).spec, configs_in(tmp_path)).values()
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_what_is_not_here_or_cannot_be_read_has_no_shape(tmp_path: Path) -> None:
    for name, text in (("broken", "{"), ("list", "[]"), ("other", '{"model_type": "mamba"}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    models = [{"name": "actor", "path": "Qwen/Qwen3-8B"}]
    models += [{"name": name, "path": name} for name in ("broken", "list", "other")]
    assert shapes_of(job(models=models).spec, configs_in(tmp_path)) == {}
