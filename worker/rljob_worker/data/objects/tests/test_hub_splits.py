"""Which files are of a split: by the card, else by names."""

import pytest

from rljob_worker.data.objects.hub_splits import SplitName, files_of_split
from rljob_worker.errors import BadData

CONFIGS = {
    "configs": [
        {
            "config_name": "main",
            "data_files": [{"split": "train", "path": "main/train-*"}, {"split": "test", "path": ["main/test-*"]}],
        },
        {"config_name": "socratic", "data_files": "socratic/*.parquet"},
    ]
}
NAMES = [
    "README.md",
    "main/train-0.parquet",
    "main/train-1.parquet",
    "main/test-0.parquet",
    "socratic/a.parquet",
    ".gitattributes",
]


def of(names, card, subset=None, split=None):
    return files_of_split(names, card, SplitName("a/b", subset, split))


def test_a_card_says_which_files_are_of_a_split():
    assert of(NAMES, CONFIGS, "main") == ["main/train-0.parquet", "main/train-1.parquet"]
    assert of(NAMES, CONFIGS, "main", "test") == ["main/test-0.parquet"]
    assert of(NAMES, CONFIGS, "socratic") == ["socratic/a.parquet"]
    with pytest.raises(BadData, match="has several subsets; write subset: main or socratic"):
        of(NAMES, CONFIGS)
    default = {"configs": [{**item, "default": item["config_name"] == "main"} for item in CONFIGS["configs"]]}
    assert len(of(NAMES, default)) == 2


@pytest.mark.parametrize(
    ("names", "split", "result"),
    [
        (["data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"], "test", 1),
        (["train.jsonl", "valid.jsonl"], "validation", 1),
        (["training/0.parquet", "training/1.parquet", "dev/0.parquet"], None, 2),
        (["all.jsonl", "more.jsonl"], None, 2),
        (["trained.jsonl"], None, 1),  # no word of a split: everything is for training
    ],
)
def test_names_say_it_where_no_card_does(names, split, result):
    assert len(of(names, {}, split=split)) == result


def test_a_folder_of_the_card_bounds_its_files():
    card = {"configs": [{"config_name": "default", "data_dir": "en"}]}
    assert of(["en/train.jsonl", "de/train.jsonl"], card) == ["en/train.jsonl"]
