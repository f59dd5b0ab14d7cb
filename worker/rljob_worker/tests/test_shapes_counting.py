"""The example that counts shapes: its policy learns to look, and is no better than chance without its pictures."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rljob_worker.tests.test_examples import EXAMPLES, run_with
from rljob_worker.tiny.provide import cache_model, copy
from rljob_worker.tiny.recipe import Recipe, shapes
from rljob_worker.tiny.shapes.scenes import COUNTS

pytestmark = pytest.mark.slow
NAME = "shapes-counting"


def test_a_policy_learns_to_look_and_knows_nothing_without_its_pictures(tmp_path: Path) -> None:
    recipe = shapes(Recipe())
    copy(cache_model(recipe), tmp_path / NAME)
    shutil.copy(EXAMPLES / f"{NAME}.yaml", tmp_path)
    run = run_with(tmp_path, NAME)
    assert run.code == 0, run.output + run.logs
    first, last = run.metrics[0], run.metrics[-1]
    assert last["validation/accuracy/shapes"] >= first["validation/accuracy/shapes"] + 0.3
    answers = pq.read_table(tmp_path / NAME / "exchanged.parquet")["answer"].to_pylist()
    commonest = max(answers.count(answer) for answer in answers) / len(answers)
    assert commonest == pytest.approx(1 / len(COUNTS), abs=0.01)
    standard_error = (commonest * (1 - commonest) / len(answers)) ** 0.5
    assert abs(last["validation/accuracy/exchanged"] - commonest) <= 2 * standard_error
    assert last["mismatch/probs_diff_max"] <= 1e-4
