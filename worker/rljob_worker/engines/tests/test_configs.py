"""What is read of a model's directory besides its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rljob_worker.engines.models import empty_policy, end_token_ids, model_config
from rljob_worker.engines.tests.builders import END, write_config
from rljob_worker.errors import InvalidJob


def write_tokenizer(directory: Path, token: int) -> None:
    (directory / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    (directory / "tokenizer.json").write_text(f'{{"added_tokens": [{{"id": {token}, "content": "<end>"}}]}}')


def test_end_tokens_are_those_of_the_generation_config_or_the_config_and_the_tokenizers(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    assert end_token_ids(path, model_config(path)) == (END,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [6, 5]}')
    assert end_token_ids(path, model_config(path)) == (5, 6)
    write_tokenizer(tmp_path, 7)
    assert end_token_ids(path, model_config(path)) == (5, 6, 7)


def test_a_model_without_end_tokens_may_have_a_tokenizer_with_one(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    config = model_config(path)
    config.eos_token_id = None
    config.save_pretrained(tmp_path)
    assert end_token_ids(path, config) == ()
    write_tokenizer(tmp_path, 7)
    assert end_token_ids(path, config) == (7,)


def test_token_0_ends_a_response_like_any_other(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 0}')
    assert end_token_ids(path, model_config(path)) == (0,)
    write_tokenizer(tmp_path, 0)
    (tmp_path / "generation_config.json").unlink()
    assert end_token_ids(path, model_config(path)) == (0, END)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": "wide"}, "cannot read its config: Validation error for field 'hidden_size'"),
        ({"num_hidden_layers": 3}, "cannot read its config: .* must be equal to the number of `layer_types`"),
        ({"model_type": "mamba"}, "cannot read its config: AttributeError: "),
        ({"hidden_act": "nothing"}, "cannot build what its config.json says: KeyError: 'nothing'; fetch the model"),
        ({"num_key_value_heads": 0}, "cannot build what its config.json says: ZeroDivisionError: integer"),
    ],
    ids=lambda item: next(iter(item)) if isinstance(item, dict) else None,
)
def test_a_config_that_transformers_stumbles_over_is_named(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = write_config(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(InvalidJob, match=message) as caught:
        empty_policy(path, torch.float32)
    assert path in str(caught.value) and "\n" not in str(caught.value)
