"""What is read of a model's directory beside its weights."""

from __future__ import annotations

from pathlib import Path

from rljob_worker.engines.models import end_token_ids, model_config
from rljob_worker.engines.tests.builders import END, write_config


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
