"""What the first rows of the data say of prompts that are too long, and of batches that are too large."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rljob_api.tests.builders import TWO_POLICIES, dag, make_job, pipeline
from rljob_worker.rehearsal.inputs.prompts import InputCheck, check_data
from rljob_worker.rehearsal.tests.good_job import CONFIG, lines, tokenizer_json

SHORT, LONG = [{"prompt": text, "answer": "1"} for text in ("a b", "a b c d")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    return tmp_path


def result(folder: Path, *data: str, **files: list[dict[str, str]]) -> list[str]:
    """Field and message of each finding; prompts of at most three tokens are kept."""
    for name, rows in files.items():
        (folder / f"{name}.jsonl").write_text(lines(rows))
    job = make_job("data.applyChatTemplate=false", "data.maxPromptTokens=3", *data)
    check = InputCheck({})
    check_data(job.spec, folder, {"models/tiny": folder}, check)
    return [f"{item.problem.path}: {item.problem.message}" for item in check.found]


def test_a_data_set_that_is_never_drawn_from_may_have_long_prompts_only(folder: Path) -> None:
    def weighted(weight: int) -> tuple[str, str]:
        sets = f"[{{path: short.jsonl, weight: 1}}, {{path: long.jsonl, weight: {weight}}}]"
        return f"data.train={sets}", "data.batchSize=2"

    files = {"short": 4 * [SHORT], "long": 4 * [LONG]}
    assert result(folder, *weighted(0), **files) == []
    assert result(folder, *weighted(1), **files) == [
        "spec.data.maxPromptTokens: every prompt of data.train[1] is longer than this; the longest has 4 tokens"
    ]


@pytest.mark.parametrize(("batch_size", "is_fine"), [(3, True), (4, False)])
def test_a_batch_has_no_more_prompts_than_are_kept(folder: Path, batch_size: int, is_fine: bool) -> None:
    job = ("data.train=[{path: train.jsonl}]", f"data.batchSize={batch_size}")
    message = "spec.data.batchSize: a batch has more prompts than data.train, which has 3"
    assert result(folder, *job, train=[SHORT, SHORT, LONG, SHORT]) == ([] if is_fine else [message])


def test_validation_may_have_fewer_prompts_than_a_batch(folder: Path) -> None:
    job = ("data.train=[{path: train.jsonl}]", "data.validation=[{path: few.jsonl}]", "data.batchSize=2")
    assert result(folder, *job, train=2 * [SHORT], few=[SHORT]) == []


def test_prompts_are_as_long_as_the_policy_has_them_that_makes_most_of_them(folder: Path) -> None:
    """Whose chat template adds a word to the three of a prompt."""
    models = {"models/left": folder, "models/right": folder / "wordy"}
    for place, words in ((folder, ""), (folder / "wordy", " b")):
        place.mkdir(exist_ok=True)
        (place / "config.json").write_text(json.dumps(CONFIG))
        (place / "tokenizer.json").write_text(tokenizer_json())
        (place / "chat_template.jinja").write_text("{{ messages[0]['content'] }}" + words)
    (folder / "train.jsonl").write_text(lines(4 * [{"prompt": "a b c", "answer": "1"}]))
    stages = dag(*pipeline("left", "correct"), *pipeline("right", "short"))
    data = ("data.train=[{path: train.jsonl}]", "data.applyChatTemplate=true", "data.batchSize=4")

    def messages_for(longest: int) -> list[str]:
        check = InputCheck({})
        job = make_job(*TWO_POLICIES, *data, f"data.maxPromptTokens={longest}", stages)
        check_data(job.spec, folder, models, check)
        return [item.problem.message for item in check.found]

    assert messages_for(4) == []
    assert messages_for(3) == ["every prompt of data.train is longer than this; the longest has 4 tokens"]


def test_rewards_are_tried_on_prompts_for_training_as_the_model_has_them(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("user: {{ messages[0]['content'] }}")
    for name in ("train", "few"):
        (folder / f"{name}.jsonl").write_text(lines([{"prompt": name, "answer": "1"}]))

    def prompts_tried(*train: str) -> list[str]:
        check = InputCheck({})
        data = ("data.validation=[{path: few.jsonl}]", "data.batchSize=1", "data.applyChatTemplate=true")
        check_data(make_job(*train, *data).spec, folder, {"models/tiny": folder}, check)
        return [row["prompt"] for row in check.rows]

    assert prompts_tried("data.train=[{path: train.jsonl}]") == ["user: train"]
    # rows that cannot be looked at here are not replaced by those of validation
    assert prompts_tried("data.train=[{path: s3://bucket/train.jsonl}]") == []
