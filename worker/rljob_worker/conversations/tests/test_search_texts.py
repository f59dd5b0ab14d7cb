"""A search over texts: which are best, and what the model is shown of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rljob_worker.conversations.search_texts import SearchTexts
from rljob_worker.conversations.targets.schema import describe


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sea").mkdir()
    texts = {"cats.txt": "Cats purr. Cats sleep.", "dogs.txt": "Dogs bark at cats.", "sea/fish.txt": "Fish swim."}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "notes.md").write_text("cats")
    return tmp_path


def test_texts_with_more_and_rarer_words_come_first(folder: Path) -> None:
    search = SearchTexts(str(folder))
    # twice in four words beats once in four
    assert search.call("cats") == "cats.txt:\nCats purr. Cats sleep.\n\ndogs.txt:\nDogs bark at cats."
    # "bark" is in one text only, "cats" in two
    assert search.call("cats bark", most=1).startswith("dogs.txt")
    assert search.call("swim") == "sea/fish.txt:\nFish swim."
    assert search.call("whales") == "no text has any of these words"


def test_one_rare_word_outweighs_three_that_nearly_all_texts_have(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text("the of and")
    (tmp_path / "rare.txt").write_text("whale swims far")
    # all texts are equally long: log(1 + 9.5 / 1.5) = 1.99 beats 3 log(1 + 1.5 / 9.5) = 0.44
    assert SearchTexts(str(tmp_path)).call("the of and whale", most=1) == "rare.txt:\nwhale swims far"


def test_long_texts_are_cut(folder: Path) -> None:
    assert SearchTexts(str(folder), most_characters=4).call("swim") == "sea/fish.txt:\nFish"


def test_a_folder_without_texts_and_other_encodings_are_named(folder: Path) -> None:
    with pytest.raises(ValueError, match="has no file whose name ends with .rst"):
        SearchTexts(str(folder), suffix=".rst")
    (folder / "latin.old").write_bytes("café".encode("latin-1"))
    with pytest.raises(ValueError, match="latin.old is not a text in UTF-8: .* at byte 3"):
        SearchTexts(str(folder), suffix=".old")


def test_it_is_a_tool() -> None:
    described = describe("rljob_worker.conversations.search_texts:SearchTexts", {"folder": "x"}, "search")
    function = described["schema"]["function"]
    assert function["description"] == "Find the texts that fit a query best."
    assert function["parameters"]["properties"]["query"] == {"type": "string", "description": "words to look for"}
