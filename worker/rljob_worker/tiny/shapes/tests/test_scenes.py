"""Pictures of shapes, and what is asked and said of them."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np

from rljob_worker.tiny.model import stated_result
from rljob_worker.tiny.shapes.scenes import (
    CELL,
    CELL_NAMES,
    COUNTS,
    KINDS,
    CellShape,
    Scene,
    answers,
    exchanged_rows,
    rows,
    scenes,
)
from rljob_worker.vision.pictures import decode


def shape(kind: str) -> CellShape:
    return CellShape(kind, "red", size=16, left=4, top=6)


def test_a_worked_answer_counts_cell_by_cell() -> None:
    disc, square = shape("disc"), shape("square")
    scene = Scene((None, disc, square, disc, None, None, None, None, square), "disc")
    assert scene.prompt() == "<image>How many discs?"
    lines = ["a empty 0", "b disc 1", "c square 1", "d disc 2", "e empty 2", "f empty 2", "g empty 2", "h empty 2"]
    assert scene.worked() == "\n".join([*lines, "i square 2", "#### 2"])


def test_a_shape_lies_within_its_cell() -> None:
    for scene in scenes(36, "test"):
        pixels = decode(scene.encoded())
        assert pixels.shape == (3 * CELL, 3 * CELL, 3)
        is_drawn = (pixels != 255).any(-1).reshape(3, CELL, 3, CELL).any((1, 3)).ravel()
        assert is_drawn.tolist() == [cell is not None for cell in scene.cells]


def test_kinds_look_different() -> None:
    drawn = [decode(Scene((shape(kind), *[None] * 8), kind).encoded()) for kind in KINDS]
    assert all(np.abs(one.astype(int) - other).sum() > 0 for one, other in itertools.combinations(drawn, 2))


def test_every_answer_is_equally_often_right_and_no_scene_comes_twice() -> None:
    made = scenes(360, "test")
    assert Counter(scene.count for scene in made) == dict.fromkeys(COUNTS, 60)
    assert Counter(scene.kind for scene in made) == dict.fromkeys(KINDS, 120)
    assert len({scene.encoded() for scene in made}) == 360
    assert made == scenes(360, "test") != scenes(360, "other")


def test_a_part_of_the_answers_is_worked_and_the_others_are_wrong() -> None:
    said = list(itertools.islice(answers(scenes(300, "test"), 0.35, 0), 3000))
    worked = [(scene, text) for scene, text in said if "\n" in text]
    assert 0.3 < len(worked) / len(said) < 0.4
    assert all(text == scene.worked() for scene, text in worked)
    assert not any(stated_result(text) == str(scene.count) for scene, text in said if "\n" not in text)
    assert all(text.count("\n") == len(CELL_NAMES) for _, text in worked)


def test_exchanged_rows_have_the_prompts_and_answers_with_pictures_of_others() -> None:
    made = scenes(36, "test")
    alike, exchanged = rows(made), exchanged_rows(made, 0)
    asked = [Counter((row["question"], row["answer"]) for row in part) for part in (alike, exchanged)]
    assert asked[0] == asked[1]
    shown = [Counter(row["images"][0]["bytes"] for row in part) for part in (alike, exchanged)]
    assert shown[0] == shown[1]
    whole = [
        {(row["question"], row["answer"], row["images"][0]["bytes"]) for row in part} for part in (alike, exchanged)
    ]
    assert len(whole[0] & whole[1]) < 36 / 4  # where a picture goes to a prompt of its own kind and count
