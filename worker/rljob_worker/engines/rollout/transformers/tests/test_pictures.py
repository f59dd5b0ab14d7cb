"""Prompts with pictures: what is generated of them is what the trainer, and stock transformers, make of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from rljob_api.catalogue.columns import IMAGES
from rljob_worker.batch import Batch, Column
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.models import load_policy
from rljob_worker.engines.models.families import VISION_FAMILIES
from rljob_worker.engines.models.vision import is_of_tower
from rljob_worker.engines.rollout.generate import Responses, answer, generate
from rljob_worker.engines.rollout.requests import Requests, Sampling
from rljob_worker.engines.rollout.transformers import TransformersRollout
from rljob_worker.engines.tests.builders import write_model
from rljob_worker.engines.tests.seeing import (
    END,
    IMAGE,
    DrawnPictures,
    Prompt,
    animated,
    encoded,
    reader_of,
    showing,
    text,
    write_vision_model,
)
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.vision.pictures import PictureList

CPU = torch.device("cpu")
SMALL, LARGE = encoded(2, 4), encoded(8, 6, 1)
PROMPTS: list[Prompt] = [[text(3), SMALL, text(4, 1)], [text(5, 2)], [LARGE, text(2), SMALL], [text(2), LARGE, text(1)]]


def rollout_of(path: str, *, room: int = 1 << 30, processor: DrawnPictures | None = None) -> TransformersRollout:
    model = load_policy(path, torch.float32, CPU)
    return TransformersRollout(model, CPU, (END,), 1.0, lambda: room, reader=reader_of(model, processor))


def tokens_of(prompts: list[Prompt], kind: str = "") -> list[np.ndarray]:
    return [np.array(showing(*prompt, kind=kind)) for prompt in prompts]


def pictures_of(prompts: list[Prompt]) -> Column:
    return Column.binary([PictureList.pack([part for part in prompt if isinstance(part, bytes)]) for prompt in prompts])


def sampled(engine: TransformersRollout, prompts: list[Prompt], sampling: Sampling, group_size: int = 2) -> Responses:
    row_ids, tokens = np.arange(len(prompts) * group_size), tokens_of(prompts, engine.model.config.model_type)
    return generate(engine, tokens, sampling, row_ids, group_size, 12, pictures=pictures_of(prompts))


def trained_log_probs(path: str, prompts: list[Prompt], responses: Column, group_size: int = 2) -> np.ndarray:
    """As the trainer computes them."""
    rows = np.arange(responses.num_rows)
    model = load_policy(path, torch.float32, CPU)
    tokens = tokens_of(prompts, model.config.model_type)
    columns = {
        "prompt_ids": Column.ragged([tokens[row // group_size] for row in rows]),
        "response_ids": responses,
        IMAGES: pictures_of(prompts).per_group_at(np.arange(0, len(rows), group_size), len(rows)),
    }
    settings = TrainSettings(trainable=False, tokens_per_micro_batch=60)
    scorer = FSDPEngine(model, settings, CPU, reader=reader_of(model))
    return scorer.log_probs(Batch.build(rows, rows // group_size, columns)).values


@pytest.mark.parametrize("kind", sorted(VISION_FAMILIES))
def test_log_probs_are_those_of_the_trainer(tmp_path: Path, kind: str) -> None:
    path, prompts = write_vision_model(tmp_path, kind), [*PROMPTS, [text(2), animated(8, 2, 4), text(1)]]
    responses = sampled(rollout_of(path), prompts, Sampling(seed=5))
    expected = trained_log_probs(path, prompts, responses.response_ids)
    np.testing.assert_allclose(responses.log_probs.values, expected, atol=1e-5)


@pytest.mark.parametrize("kind", sorted(VISION_FAMILIES))
def test_the_likeliest_tokens_are_those_of_stock_transformers(tmp_path: Path, kind: str) -> None:
    path = write_vision_model(tmp_path, kind)
    responses = sampled(rollout_of(path), PROMPTS, Sampling(temperature=0), group_size=1)
    stock = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32).eval()
    for prompt, response in zip(PROMPTS, responses.response_ids.to_list(), strict=True):
        ids = torch.from_numpy(tokens_of([prompt])[0])[None]
        patches = [DrawnPictures().patches(part) for part in prompt if isinstance(part, bytes)]
        shown = {}
        if patches:
            shown = {
                "pixel_values": torch.from_numpy(np.concatenate([item.pixel_values for item in patches])),
                "image_grid_thw": torch.from_numpy(np.stack([item.grid_thw for item in patches])),
                "mm_token_type_ids": (ids == IMAGE).long(),
            }
        stock.model.rope_deltas = None
        mask = torch.ones_like(ids)
        result = stock.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False, pad_token_id=0, **shown)
        assert result[0, ids.shape[1] :].tolist() == response.tolist()


def test_two_pictures_of_one_size_under_one_question_are_answered_apart(tmp_path: Path) -> None:
    path = write_vision_model(tmp_path, "qwen3_vl")
    prompts: list[Prompt] = [[text(3), encoded(4, 4, seed), text(2)] for seed in (0, 1)]
    assert tokens_of(prompts)[0].tolist() == tokens_of(prompts)[1].tolist()
    responses = sampled(rollout_of(path), prompts, Sampling(seed=1))
    expected = trained_log_probs(path, prompts, responses.response_ids)
    np.testing.assert_allclose(responses.log_probs.values, expected, atol=1e-5)
    swapped = trained_log_probs(path, prompts[::-1], responses.response_ids)
    assert np.abs(swapped - expected).max() > 0.1


def test_rows_that_wait_again_go_on_at_their_positions(tmp_path: Path) -> None:
    """New weights, which are the old ones, in the middle of responses, and a cache that has room for some rows."""
    path = write_vision_model(tmp_path, "qwen2_5_vl")
    expected = sampled(rollout_of(path), PROMPTS, Sampling(seed=5))
    engine = rollout_of(path)
    weights = [(name, item.detach().clone()) for name, item in engine.model.named_parameters()]
    prompts, rows = Column.ragged(tokens_of(PROMPTS)), np.arange(8)
    requests = Requests(
        rows,
        np.zeros_like(rows),
        prompts,
        rows // 2,
        np.full(8, 12),
        (Sampling(seed=5),),
        pictures=pictures_of(PROMPTS),
    )
    engine.submit(requests)
    parts = [engine.advance(3)]
    engine.load_weights(weights, 1)
    while engine.load.running or engine.load.waiting:
        parts.append(engine.advance())
    tokens = {int(row): part.response_ids.row(at) for part in parts for at, row in enumerate(part.row_ids)}
    for row in range(8):
        np.testing.assert_array_equal(tokens[row], expected.response_ids.row(row))


def turn(number: int, prompt: Prompt) -> Requests:
    return Requests(
        np.zeros(1, np.int64),
        np.array([number]),
        Column.ragged(tokens_of([prompt])),
        np.zeros(1, np.int64),
        np.array([6]),
        (Sampling(seed=3),),
        pictures=pictures_of([prompt]),
    )


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl"])
def test_a_next_turn_goes_on_from_what_is_held_where_it_shows_the_same(tmp_path: Path, kind: str) -> None:
    """Then with another picture behind, and with another one in the place of the first."""
    path = write_vision_model(tmp_path, kind)
    engine = rollout_of(path)
    first = answer(engine, turn(0, [text(3), SMALL, text(2)]))
    engine.hold(np.zeros(1, np.int64))
    response = first.response_ids.row(0).tolist()
    for number, begin in enumerate((SMALL, encoded(2, 4, seed=9)), start=1):
        prompt: Prompt = [text(3), begin, text(2), response, LARGE, text(2)]
        alone = answer(rollout_of(path), turn(number, prompt))
        held = answer(engine, turn(number, prompt))
        np.testing.assert_array_equal(held.response_ids.values, alone.response_ids.values)
        np.testing.assert_allclose(held.log_probs.values, alone.log_probs.values, atol=1e-5)
        answer(engine, turn(10 + number, [text(3), SMALL, text(2)]))
        engine.hold(np.zeros(1, np.int64))


def test_what_does_not_fit_is_refused_before_it_is_queued(tmp_path: Path) -> None:
    path = write_vision_model(tmp_path / "sees", "qwen3_vl")
    processor = DrawnPictures()
    engine = rollout_of(path, processor=processor)
    good = turn(0, [SMALL, text(2)])
    for pictures, reason in (
        (
            Column.binary([PictureList.pack([LARGE])]),
            "row 1: its prompt has 2 picture tokens, and its 1 pictures .* 12",
        ),
        (Column.binary([b""]), "row 1: its prompt has 2 picture tokens, and its 0 pictures"),
        (Column.binary([PictureList.pack([b"<html>"])]), "row 1: the bytes are no picture"),
        (None, "row 1: its prompt has 2 picture tokens, and its 0 pictures"),
    ):
        with pytest.raises(BadData, match=reason):
            engine.submit(replace(good, pictures=pictures))
    with pytest.raises(BadData, match=r"pictures is not binary \[1 prompts\]"):
        engine.submit(replace(good, pictures=Column.binary([b"", b""])))
    assert engine.load.waiting == 0 and not processor.opened
    blind = TransformersRollout(load_policy(write_model(tmp_path / "blind"), torch.float32, CPU), CPU, (END,))
    with pytest.raises(InvalidJob, match="row 1: its prompt has pictures, and the model of the engine does not see"):
        blind.submit(replace(good, prompts=Column.ragged([[5, 6, 7]])))


def test_a_frozen_tower_does_not_come_with_new_weights(tmp_path: Path) -> None:
    model = load_policy(write_vision_model(tmp_path, "qwen3_vl"), torch.float32, CPU)
    weights = [(name, item.detach().clone()) for name, item in model.named_parameters()]
    decoder = [(name, item) for name, item in weights if not is_of_tower(name)]
    engine = TransformersRollout(model, CPU, (END,), frozen=is_of_tower)
    engine.load_weights(decoder, 1)
    engine.load_weights(weights, 2)
    with pytest.raises(InvalidJob, match="lm_head.weight of the rollout model did not come"):
        engine.load_weights((item for item in decoder if item[0] != "lm_head.weight"), 3)
    with pytest.raises(InvalidJob, match="visual.*did not come"):
        TransformersRollout(model, CPU, (END,)).load_weights(decoder, 3)
