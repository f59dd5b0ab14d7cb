"""A policy that does not see ends the job."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from rljob_api.tests.builders import make_plan
from rljob_api.v1alpha1 import RLJobSpec
from rljob_worker.batch import Batch, Column
from rljob_worker.errors import BadData
from rljob_worker.stages.exchanged_pictures import NUM_GROUPS, SeesPictures, exchanged, exchanged_rows
from rljob_worker.vision.pictures import PictureList, decode
from rljob_worker.vision.tests.picture_files import picture
from rljob_worker.vision.tests.video_files import animation, frames_of
from rljob_worker.vision.videos import decode_frames, read_video_header

ONE, TWO, THREE = (picture(seed=seed) for seed in range(3))
WIDE = picture(20, 60)


class FakeEngine:
    """Log-probs that depend on the mean of a prompt's pictures, times `sight`."""

    def __init__(self, sight: float) -> None:
        self.sight, self.num_calls = sight, 0

    def log_probs(self, batch: Batch) -> Column:
        self.num_calls += 1
        lists = (PictureList.unpack(blob) for blob in batch["images"].to_list())
        means = [sum(float(decode(item).mean()) for item in pictures) for pictures in lists]
        lengths = batch["response_ids"].lengths
        return Column.from_lengths(np.repeat(-1.0 - self.sight * np.array(means), lengths), lengths)


def seeing_spec() -> RLJobSpec:
    spec = make_plan().spec
    return spec.model_copy(update={"data": spec.data.model_copy(update={"images_column": "images"})})


def batch_of(prompts: Sequence[Sequence[bytes]]) -> Batch:
    """Two rows for each prompt, of one token and two."""
    num_rows = 2 * len(prompts)
    heads = np.arange(0, num_rows, 2)
    columns = {
        "prompt_ids": Column.ragged([[5]] * len(prompts)).per_group_at(heads, num_rows),
        "response_ids": Column.ragged([[6], [6, 7]] * len(prompts)),
        "images": Column.binary([PictureList.pack(item) for item in prompts]).per_group_at(heads, num_rows),
    }
    return Batch.build(range(num_rows), np.repeat(range(len(prompts)), 2), columns)


def unpacked(blobs: Sequence[bytes]) -> list[list[bytes]]:
    return [[bytes(item) for item in PictureList.unpack(blob)] for blob in blobs]


def alone(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def test_pictures_of_one_size_go_to_the_next_prompt() -> None:
    assert unpacked(exchanged([[ONE], [TWO], [THREE]])) == [[TWO], [THREE], [ONE]]
    assert unpacked(exchanged([[ONE], [], [ONE, TWO]])) == [[TWO], [], [TWO, ONE]]


def test_a_picture_that_no_other_has_the_size_of_becomes_its_negative() -> None:
    one, wide = unpacked(exchanged([[ONE], [WIDE, TWO]]))
    assert one == [TWO] and wide[1] == ONE
    assert (decode(wide[0]) == 255 - decode(WIDE)).all()


def test_videos_of_one_size_and_times_are_exchanged_and_others_become_a_still() -> None:
    one, two = (animation(frames_of(4, seed=seed)) for seed in (0, 1))
    assert unpacked(exchanged([[one], [two, ONE]]))[0] == [two]
    slow = animation(frames_of(4), milliseconds=500)
    (still,), (other,) = unpacked(exchanged([[slow], [one]]))
    assert read_video_header(still) == read_video_header(slow) and other != one
    assert (decode_frames(still, [0, 3]) == 255 - decode_frames(slow, [0])).all()


def test_a_row_of_each_of_the_first_groups_is_scored() -> None:
    rows, others = exchanged_rows(batch_of([[picture(seed=i)] for i in range(NUM_GROUPS + 2)]))
    assert rows.row_ids.tolist() == [2 * i for i in range(NUM_GROUPS)] == others.row_ids.tolist()
    assert rows.columns["images"].row(1) == others.columns["images"].row(0)


def test_a_policy_that_sees_goes_on_and_is_checked_once() -> None:
    engine, check = FakeEngine(sight=1e-3), SeesPictures(seeing_spec(), "actor")
    for _ in range(3):
        check.check(batch_of([[ONE], [TWO]]), engine, alone)
    assert engine.num_calls == 2


def test_a_policy_that_does_not_see_ends_the_job() -> None:
    check = SeesPictures(seeing_spec(), "actor")
    with pytest.raises(BadData, match="policy actor does not see: log-probs of 2 rows stay the same"):
        check.check(batch_of([[ONE], [TWO]]), FakeEngine(sight=0.0), alone)


def test_a_rank_without_pictures_goes_by_what_others_see() -> None:
    engine, check = FakeEngine(sight=0.0), SeesPictures(seeing_spec(), "actor")
    check.check(batch_of([[], []]), engine, lambda tensor: tensor + torch.tensor([1.0, 0.5]))
    check.check(batch_of([[], []]), engine, alone)
    assert engine.num_calls == 2


def test_a_step_without_pictures_anywhere_leaves_the_check_to_a_later_one() -> None:
    engine, check = FakeEngine(sight=0.0), SeesPictures(seeing_spec(), "actor")
    check.check(batch_of([[], []]), engine, alone)
    with pytest.raises(BadData, match="does not see"):
        check.check(batch_of([[ONE], [TWO]]), engine, alone)


def test_a_job_without_pictures_is_not_checked() -> None:
    engine = FakeEngine(sight=0.0)
    SeesPictures(make_plan().spec, "actor").check(batch_of([[ONE]]), engine, alone)
    assert engine.num_calls == 0
