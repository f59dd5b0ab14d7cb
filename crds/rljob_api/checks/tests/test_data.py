"""Places of data sets."""

import pytest

from rljob_api.tests.builders import problems

TRAIN, VALIDATION = "data.train[0].", "data.validation=[{path: "
HUB = "hf://datasets/openai/gsm8k"


@pytest.mark.parametrize("path", [HUB, f"{HUB}@v1", f"{HUB}@refs%2Fconvert%2Fparquet/main/*.parquet"])
def test_data_sets_of_the_hub_are_named_with_revision_and_files(path):
    assert problems(f"{TRAIN}path={path}") == []


@pytest.mark.parametrize("path", ["hf://gsm8k", "hf://datasets/gsm8k", "hf://models/openai/gsm8k"])
def test_other_urls_of_the_hub_are_refused_with_the_form(path):
    (problem,) = map(str, problems(f"{TRAIN}path={path}"))
    assert "spec.data.train[0].path" in problem and "Write hf://datasets/owner/name" in problem


def test_subset_and_split_are_of_whole_data_sets_of_the_hub():
    assert problems(f"{TRAIN}path={HUB}", f"{TRAIN}split=train", f"{TRAIN}subset=main") == []
    for path in ("data/train.parquet", f"{HUB}/main/train.parquet"):
        (problem,) = map(str, problems(f"{TRAIN}path={path}", f"{TRAIN}split=train"))
        assert "spec.data.train[0].split" in problem and "Leave it out" in problem


def test_validation_data_of_the_hub_name_their_split():
    assert problems(f"{VALIDATION}{HUB}, split: test}}]") == []
    (problem,) = map(str, problems(f"{VALIDATION}{HUB}}}]"))
    assert "spec.data.validation[0].split" in problem and "such as test" in problem
