"""Packs of rows with pictures against one stock forward per row, and what makes two prompts one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rljob_worker.batch import Batch, Column
from rljob_worker.engines.fsdp import FSDPEngine, TrainSettings
from rljob_worker.engines.micro_batch import MicroBatch, response_log_probs
from rljob_worker.engines.models import load_policy
from rljob_worker.engines.models.families import VISION_FAMILIES
from rljob_worker.engines.packing import PatchBudget, micro_batches, pack, shared_prompts
from rljob_worker.engines.prompt_pictures import Picture, RowPictures, ShownTokens
from rljob_worker.engines.tests.builders import a_batch, write_model
from rljob_worker.engines.tests.seeing import (
    END,
    IMAGE,
    VIDEO,
    VISION_CONFIGS,
    DrawnPictures,
    Prompt,
    animated,
    encoded,
    reader_of,
    showing,
    stock_model,
    text,
    vision_batch,
    write_vision_model,
)
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.vision.pictures import PictureList

CPU = torch.device("cpu")
SMALL, WIDE, LARGE = encoded(2, 4), encoded(2, 8, 1), encoded(8, 6, 2)
PROMPTS: list[Prompt] = [
    [text(3), SMALL, text(4, 1)],
    [text(5, 2)],
    [LARGE, text(2), SMALL, text(3)],
    [text(1), WIDE],
]
LENGTHS = [4, 7, 3, 2, 5, 1, 0, 6]


def by_hand(model: Any, batch: Batch, prompts: list[Prompt], group_size: int = 2) -> torch.Tensor:
    """Row by row, as transformers computes it: logits at t - 1 predict token t."""
    result = []
    for row, response in enumerate(batch["response_ids"].to_list()):
        if len(response):
            logits = stock_logits(model, prompts[row // group_size], response.tolist())
            result.append(torch.log_softmax(logits[-len(response) - 1 : -1], -1)[range(len(response)), response])
    return torch.cat(result)


def stock_logits(model: Any, prompt: Prompt, response: list[int]) -> torch.Tensor:
    kind = model.config.model_type
    ids = torch.tensor([showing(*prompt, kind=kind) + response])
    patches = [DrawnPictures().patches(part) for part in prompt if isinstance(part, bytes)]
    shown: dict[str, Any] = {}
    for name, grid, of_kind in (
        ("pixel_values", "image_grid_thw", [item for item in patches if not item.is_video]),
        ("pixel_values_videos", "video_grid_thw", videos := [item for item in patches if item.is_video]),
    ):
        if of_kind:
            shown[name] = torch.from_numpy(np.concatenate([item.pixel_values for item in of_kind]))
            shown[grid] = torch.from_numpy(np.stack([item.grid_thw for item in of_kind]))
    if videos and kind == "qwen2_5_vl":
        shown["second_per_grid_ts"] = [item.seconds for item in videos]
    model.model.rope_deltas = None
    kinds = (ids == IMAGE).long() + 2 * (ids == VIDEO).long()
    logits: torch.Tensor = model(input_ids=ids, mm_token_type_ids=kinds, use_cache=False, **shown).logits[0]
    return logits


def test_every_family_that_sees_has_a_tiny_model() -> None:
    assert set(VISION_CONFIGS) == set(VISION_FAMILIES)


VIDEOS: list[Prompt] = [
    # two patches of frames, of 3 x 2 features and of 2 x 3; the second prompt shows a picture besides
    [text(3), animated(4, 6, 4), text(4, 1)],
    [text(2), SMALL, text(1), animated(5, 4, 6, 1), text(3)],
    [text(5, 2)],
    [animated(4, 6, 4), text(2)],
]


@pytest.mark.parametrize("kind", sorted(VISION_FAMILIES))
@pytest.mark.parametrize("prompts", [PROMPTS, VIDEOS], ids=["pictures", "videos"])
def test_a_pack_with_pictures_equals_its_rows_alone(tmp_path: Path, kind: str, prompts: list[Prompt]) -> None:
    """Log-probs, and gradients of decoder and tower."""
    stock, path = stock_model(kind), write_vision_model(tmp_path, kind)
    ours = load_policy(path, torch.float32, CPU)
    batch = vision_batch(prompts, LENGTHS, kind=kind)
    rows = MicroBatch.of(batch, np.arange(len(batch)), CPU, reader=reader_of(ours))
    log_probs = response_log_probs(ours, rows, temperature=1.0).log_probs
    expected = by_hand(stock, batch, prompts)
    assert float((log_probs - expected).detach().abs().max()) < 1e-5
    weights = torch.linspace(-1, 1, len(expected))
    (weights * log_probs).sum().backward()
    (weights * expected).sum().backward()
    theirs = dict(stock.named_parameters())
    for name, mine in ours.named_parameters():
        assert float((mine.grad - theirs[name].grad).norm()) <= 1e-5 * float(theirs[name].grad.norm()), name


def test_a_response_goes_on_behind_the_frames_of_a_video(tmp_path: Path) -> None:
    """As Qwen2.5-VL was published; `get_rope_index` of transformers 5 counts rows and columns alone."""
    # four patches of two frames each, half a second: at four positions a second they are 2 apart; 1 x 2 features each
    prompts: list[Prompt] = [[text(2), animated(8, 2, 4), text(1)]]
    for kind, positions in (
        ("qwen2_5_vl", [0, 1, 2, *[3, 3, 5, 5, 7, 7, 9, 9], 10, 11]),
        # time, time, start, two features and end of each; features of a row of two take two positions
        ("qwen3_vl", [0, 1, *[2 + 6 * i + at for i in range(4) for at in (0, 1, 2, 3, 3, 5)], 26]),
    ):
        model = load_policy(write_vision_model(tmp_path / kind, kind), torch.float32, CPU)
        batch = vision_batch(prompts, [3], group_size=1, kind=kind)
        rows = MicroBatch.of(batch, np.arange(1), CPU, reader=reader_of(model))
        # of the response's tokens the last one is not computed
        behind = [positions[-1] + 1, positions[-1] + 2]
        assert rows.positions[1, 0].tolist() == positions + behind


def test_tokens_of_videos_where_pictures_are_shown_are_refused(tmp_path: Path) -> None:
    model = load_policy(write_vision_model(tmp_path, "qwen2_5_vl"), torch.float32, CPU)
    batch = vision_batch([[text(1), animated(4, 2, 4), encoded(4, 4)]], [2], group_size=1)
    swapped = [PictureList.pack([encoded(4, 4), animated(4, 2, 4)])]
    with pytest.raises(BadData, match="tokens of pictures where the column 'images' has videos, or the reverse"):
        FSDPEngine(model, TrainSettings(), CPU, reader=reader_of(model)).log_probs(
            batch.with_columns({"images": Column.binary(swapped).per_group_at(np.array([0]), 1)})
        )


def test_a_token_that_a_policy_draws_for_itself_is_no_picture(tmp_path: Path) -> None:
    ours = load_policy(write_vision_model(tmp_path, "qwen3_vl"), torch.float32, CPU)
    batch = vision_batch(PROMPTS[:1], [3], group_size=1)
    drawn = batch.with_columns({"response_ids": Column.ragged([[IMAGE, IMAGE, END]])})
    rows = MicroBatch.of(drawn, np.arange(1), CPU, reader=reader_of(ours))
    assert rows.pictures is not None and rows.pictures.places.tolist() == [4, 5]
    assert response_log_probs(ours, rows, 1.0).log_probs.shape == (3,)


def test_two_pictures_of_one_size_under_one_question_are_two_prompts(tmp_path: Path) -> None:
    """Their tokens are the same, and what the policy makes of them is not."""
    path = write_vision_model(tmp_path, "qwen2_5_vl")
    model = load_policy(path, torch.float32, CPU)
    prompts: list[Prompt] = [[text(3), encoded(4, 4, seed), text(2)] for seed in (0, 1)]
    batch = vision_batch(prompts, [4, 4, 4, 4])
    assert batch["prompt_ids"].row(0).tolist() == batch["prompt_ids"].row(2).tolist()
    rows = MicroBatch.of(batch, np.arange(4), CPU, reader=reader_of(model))
    # two prompts of 3 + 6 + 2 tokens, and 3 more of each response
    assert rows.token_ids.shape == (1, 2 * 11 + 4 * 3) and rows.pictures is not None
    assert rows.pictures.grids.tolist() == [[1, 4, 4], [1, 4, 4]]
    engine = FSDPEngine(model, TrainSettings(), CPU, reader=reader_of(model))
    expected = by_hand(stock_model("qwen2_5_vl"), batch, prompts).detach()
    np.testing.assert_allclose(engine.log_probs(batch).values, expected, atol=1e-5)


def test_a_picture_that_prompts_share_goes_through_the_tower_once(tmp_path: Path) -> None:
    model = load_policy(write_vision_model(tmp_path, "qwen3_vl"), torch.float32, CPU)
    prompts: list[Prompt] = [[SMALL, text(3)], [text(2), LARGE, text(1), SMALL]]
    rows = MicroBatch.of(vision_batch(prompts, [2, 2, 2, 2]), np.arange(4), CPU, reader=reader_of(model))
    assert rows.pictures is not None
    assert rows.pictures.grids.tolist() == [[1, 2, 4], [1, 8, 6]] and len(rows.pictures.pixel_values) == 8 + 48
    # two features of the first picture, then twelve of the second, then the first's again
    assert rows.pictures.features.tolist() == [0, 1, *range(2, 14), 0, 1]


def picture(digest: bytes, grid: list[int]) -> Picture:
    return Picture(digest, np.zeros((4, 1), np.float32), np.array(grid), int(np.prod(grid)) // 4)


def test_positions_of_a_response_go_on_behind_the_largest_of_its_prompt() -> None:
    # a picture of 2 x 4 features between one token and one: rows 1, columns 1 to 4, so that the last token is at 5
    rope = np.array([[0, 0, 0], *[[1, 1 + row, 1 + column] for row in range(2) for column in range(4)], [5, 5, 5]])
    shown = ShownTokens(np.arange(1, 9), (picture(b"a", [1, 4, 8]),), rope)
    prompt = [7, *[IMAGE] * 8, 8]
    rows = pack(
        Column.ragged([prompt, prompt]),
        Column.ragged([[4, 5, 6], [2, 3]]),
        pictures=RowPictures(np.zeros(2, np.int64), lambda row: shown),
    )
    assert rows.positions[:10, 1:].tolist() == rope.tolist()
    # tokens 4 5 of the first response and 2 of the second: places 10, 11 and 10, and positions from 6 on
    assert rows.positions[10:].tolist() == [[10, 6, 6, 6], [11, 7, 7, 7], [10, 6, 6, 6]]
    assert rows.features is not None and rows.features.tolist() == [0, *range(1, 9), 0, 0, 0, 0]


def test_prompts_are_shared_where_their_pictures_are_the_same() -> None:
    prompts = Column.ragged([[5, 6]] * 4)
    assert shared_prompts(prompts, np.array([0, 0, 1, 1])).tolist() == [0, 2, 0, 2]
    assert shared_prompts(prompts).tolist() == [0, 2, 2, 2]


def test_patches_have_a_budget_of_their_own() -> None:
    # all tokens fit; of 10 patches two prompts of 4 do, and a picture of 16 is alone. A shared prompt opens none.
    patches = np.array([4, 4, 4, 16, 16, 4, 0])
    shared = np.array([0, 1, 0, 0, 1, 0, 0])
    runs = micro_batches(np.full(7, 2), 100, shared, pictures=PatchBudget(patches, 10))
    assert [run.tolist() for run in runs] == [[0, 1, 2], [3, 4], [5, 6]]
    # behind a row that has its prompt the second row opens none; where it begins a micro-batch it opens 8
    runs = micro_batches(np.array([4, 4, 4]), 7, np.array([0, 1, 0]), pictures=PatchBudget(np.array([8, 8, 4]), 8))
    assert [run.tolist() for run in runs] == [[0, 1], [2]]
    together = np.array([0, 0, 1])
    runs = micro_batches(np.full(3, 2), 100, np.array([0, 0, 1]), together, PatchBudget(np.array([4, 4, 4]), 8))
    assert [run.tolist() for run in runs] == [[0, 1, 2]]


def test_pictures_that_are_not_those_of_the_tokens_are_refused_by_row(tmp_path: Path) -> None:
    model = load_policy(write_vision_model(tmp_path, "qwen3_vl"), torch.float32, CPU)
    engine = FSDPEngine(model, TrainSettings(), CPU, reader=reader_of(model))
    batch = vision_batch(PROMPTS[:1], [2, 2])
    other = vision_batch([[text(3), LARGE, text(4, 1)]], [2, 2])
    with pytest.raises(BadData, match=r"row 1: its prompt has 2 picture tokens, and its 1 pictures .* make 12"):
        engine.log_probs(batch.with_columns({"images": other.columns["images"]}))
    with pytest.raises(BadData, match="no column 'images': the policy would be trained blind"):
        engine.log_probs(Batch(batch.row_ids, batch.group_ids, batch.num_tokens, {
            name: column for name, column in batch.columns.items() if name != "images"
        }))  # fmt: skip


def test_a_model_that_does_not_see_refuses_pictures(tmp_path: Path) -> None:

    engine = FSDPEngine(load_policy(write_model(tmp_path), torch.float32, CPU), TrainSettings(), CPU)
    batch = a_batch([2, 2]).with_columns({"images": vision_batch(PROMPTS[:1], [2, 2]).columns["images"]})
    with pytest.raises(InvalidJob, match="Qwen3ForCausalLM does not see, and the batch has pictures"):
        engine.log_probs(batch)
