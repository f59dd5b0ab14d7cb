"""The tiny model that sees, and its data."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoTokenizer

from rljob_worker.tiny.make import make_model
from rljob_worker.tiny.model import stated_result
from rljob_worker.tiny.pretrain import IGNORED
from rljob_worker.tiny.recipe import Recipe, quick, shapes
from rljob_worker.tiny.seal import holds
from rljob_worker.tiny.shapes.scenes import scenes
from rljob_worker.tiny.shapes.seeing_model import BUDGET, collate_seen, inputs_of, seen_loss
from rljob_worker.vision.picture_tokens import PicturePlaces
from rljob_worker.vision.processing import PictureProcessor

RECIPE = shapes(quick())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made")
    make_model(RECIPE, directory)
    return directory


def test_quick_makes_a_model_that_sees_and_data_that_load(made: Path) -> None:
    model = AutoModelForImageTextToText.from_pretrained(made / "model")
    assert model.config.model_type == "qwen2_5_vl" and model.num_parameters() <= 500_000
    tables = {name: pq.read_table(made / f"{name}.parquet") for name in ("train", "validation", "exchanged")}
    assert {name: len(table) for name, table in tables.items()} == {"train": 256, "validation": 32, "exchanged": 32}
    row = tables["train"].to_pylist()[0]
    assert set(row) == {"question", "images", "answer"} and stated_result(row["answer"]) is not None
    assert holds(made, RECIPE) and shapes(Recipe()).key() != RECIPE.key()
    (made / "exchanged.parquet").rename(made / "lost")
    assert not holds(made, RECIPE)
    (made / "lost").rename(made / "exchanged.parquet")


def test_it_reads_prompts_as_jobs_make_them(made: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made / "model")
    processor = PictureProcessor.load(str(made / "model"), BUDGET)
    scene = scenes(1, "test")[0]
    tokens, labels, patches = collate_seen(tokenizer, processor, [(scene, scene.worked())])
    places = PicturePlaces(tokenizer, processor.tokens)
    message = [{"role": "user", "content": places.in_text(scene.prompt())}]
    text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    ids = tokenizer([text], add_special_tokens=False, return_tensors="np")["input_ids"][0]
    expected = places.expand(ids, [processor.num_tokens((84, 84))], "row 1").tolist()
    assert tokens[0, : len(expected)].tolist() == expected and len(expected) <= 24
    assert (labels[0, : len(expected)] == IGNORED).all() and int((labels != IGNORED).sum()) == 30
    assert patches.shape == (36, 3 * 2 * 14 * 14)


def test_its_positions_and_losses_are_those_of_transformers(made: Path) -> None:
    model = AutoModelForImageTextToText.from_pretrained(made / "model")
    tokenizer = AutoTokenizer.from_pretrained(made / "model")
    processor = PictureProcessor.load(str(made / "model"), BUDGET)
    tokens, labels, patches = collate_seen(tokenizer, processor, [(s, s.worked()) for s in scenes(3, "test")])
    inputs = inputs_of(model, tokens, patches) | {"mm_token_type_ids": (tokens == processor.tokens.pad).long()}
    del inputs["position_ids"]
    with torch.no_grad():
        expected = model(**inputs, labels=labels).loss
        assert float(abs(seen_loss(model, tokens, labels, patches) - expected)) < 1e-5
