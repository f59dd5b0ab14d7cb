"""Prompts with pictures: every form of data, places in prompts, and what is refused by row."""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rljob_worker.data.dataset import PromptDataset, PromptPictures
from rljob_worker.data.picture_files import PictureFiles
from rljob_worker.data.source import DataAccess
from rljob_worker.data.tests.test_dataset import Data, File, write_lines, write_parquet
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.vision.checkpoint_files import PictureTokens
from rljob_worker.vision.frame_sampling import VideoBudget
from rljob_worker.vision.picture_tokens import PicturePlaces
from rljob_worker.vision.pictures import PictureList
from rljob_worker.vision.processing import PictureProcessor
from rljob_worker.vision.sizes import PixelBudget
from rljob_worker.vision.tests.checkpoints import END, PAD, START, VIDEO_PAD, checkpoint
from rljob_worker.vision.tests.picture_files import picture
from rljob_worker.vision.tests.video_files import animation, frames_of, video_file

WORDS = [
    "<pad>",
    "<unk>",
    "<user>",
    "<assistant>",
    "<s>",
    "<|start|>",
    "<|pad|>",
    "<|end|>",
    "a",
    "b",
    "?",
    "<|video|>",
]
A, B, ASK, USER, ASSISTANT = 8, 9, 10, 2, 3
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
SEEN = [START, *[PAD] * 4, END]
"""A picture of 56 x 56 is 2 x 2 merged patches of 28 x 28."""


def vision_tokenizer(template: str | None = TEMPLATE, words: list[str] = WORDS) -> PreTrainedTokenizerFast:
    """Words, and special tokens of pictures that need no space around them."""
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = [word for word in words if word.startswith("<")]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", additional_special_tokens=special
    )
    tokenizer.name_or_path, tokenizer.chat_template = "models/tiny", template
    return tokenizer


VIDEO_BUDGET = VideoBudget(PixelBudget(784, 1024), frames_per_second=2, max_frames=8)


def open_pictures(
    tmp_path: Path,
    path: Any,
    *,
    column: str | None = "images",
    allow_http: bool = False,
    videos: str | None = None,
    model_type: str = "qwen2_5_vl",
    **data: Any,
) -> PromptDataset:
    model, budget = str(checkpoint(tmp_path / "model", model_type)), PixelBudget(784, 7056)
    processor = PictureProcessor.load(model, budget, videos=None if videos is None else VIDEO_BUDGET)
    return PromptDataset(
        Data(**({"max_prompt_tokens": 40} | data)),
        sources=[File(str(path))],
        columns=(),
        tokenizer=vision_tokenizer(),
        access=DataAccess(tmp_path / "cache"),
        pictures=PromptPictures(column, processor, allow_http, videos),
    )


def refusal(tmp_path: Path, path: Any, kind: type[Exception] = BadData, **values: Any) -> str:
    with pytest.raises(kind) as caught:
        open_pictures(tmp_path, path, **values).fetch([0])
    return str(caught.value)


def images(dataset: PromptDataset, ordinals: list[int]) -> list[list[bytes]]:
    column = dataset.fetch(ordinals).columns["images"]
    return [[bytes(item) for item in PictureList.unpack(blob)] for blob in column.to_list()]


ONE, TWO = picture(56, 56, seed=1), picture(56, 56, seed=2, format="JPEG")


def parquet_of_bytes(tmp_path: Path) -> str:
    return write_parquet(tmp_path / "data" / "t.parquet", [{"prompt": "<image> a", "images": ONE}])


def parquet_of_lists(tmp_path: Path) -> str:
    return write_parquet(tmp_path / "data" / "t.parquet", [{"prompt": "<image> a", "images": [ONE]}])


def parquet_of_records(tmp_path: Path) -> str:
    row = {"prompt": "<image> a", "images": [{"bytes": ONE, "path": "lost.png"}]}
    return write_parquet(tmp_path / "data" / "t.parquet", [row])


def lines_of_paths(tmp_path: Path) -> str:
    path = write_lines(tmp_path / "data" / "t.jsonl", [{"prompt": "<image> a", "images": ["pictures/one.png"]}])
    (tmp_path / "data" / "pictures").mkdir()
    (tmp_path / "data" / "pictures" / "one.png").write_bytes(ONE)
    return path


def lines_of_data_urls(tmp_path: Path) -> str:
    url = "data:image/png;base64," + base64.b64encode(ONE).decode()
    return write_lines(tmp_path / "data" / "t.jsonl", [{"prompt": "<image> a", "images": url}])


def parquet_of_datasets(tmp_path: Path) -> str:
    """With the metadata by which the library would decode the column."""
    features = datasets.Features({"prompt": datasets.Value("string"), "images": datasets.List(datasets.Image())})
    rows = {"prompt": ["<image> a"], "images": [[{"bytes": ONE, "path": None}]]}
    path = tmp_path / "data" / "t.parquet"
    path.parent.mkdir()
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(path))
    return str(path)


def saved_by_datasets(tmp_path: Path) -> str:
    features = datasets.Features({"prompt": datasets.Value("string"), "images": datasets.Image()})
    rows = {"prompt": ["<image> a"], "images": [{"bytes": ONE, "path": None}]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(tmp_path / "data"))
    return str(tmp_path / "data")


FORMS = [
    parquet_of_bytes,
    parquet_of_lists,
    parquet_of_records,
    lines_of_paths,
    lines_of_data_urls,
    parquet_of_datasets,
    saved_by_datasets,
]


@pytest.mark.parametrize("make", FORMS)
def test_pictures_come_from_every_form_of_data_as_they_are(tmp_path: Path, make: Any) -> None:
    dataset = open_pictures(tmp_path, make(tmp_path))
    assert images(dataset, [0]) == [[ONE]]
    assert dataset.fetch([0]).prompt_ids[0].tolist() == [*SEEN, A]


def test_each_place_has_as_many_tokens_as_its_picture(tmp_path: Path) -> None:
    # 28 x 84 is one merged patch by three
    rows = [{"prompt": "<image> a <image> b", "images": [ONE, picture(28, 84)]}, {"prompt": "a b", "images": None}]
    dataset = open_pictures(tmp_path, write_parquet(tmp_path / "data" / "t.parquet", rows), shuffle=False)
    first, second = dataset.fetch([0, 1]).prompt_ids
    assert first.tolist() == [*SEEN, A, START, PAD, PAD, PAD, END, B]
    assert second.tolist() == [A, B]
    assert images(dataset, [1]) == [[]]


def test_parts_of_messages_and_placeholders_in_them_are_places(tmp_path: Path) -> None:
    parts = [{"type": "image", "text": None}, {"type": "text", "text": " a ?"}]
    texts = [{"type": "text", "text": "<image> a ?"}, {"type": "text", "text": ""}]
    rows = [
        {"prompt": [{"role": "user", "content": parts}], "images": ONE},
        {"prompt": [{"role": "user", "content": texts}], "images": ONE},
    ]
    path = write_parquet(tmp_path / "data" / "t.parquet", rows)
    prompts = open_pictures(tmp_path, path, shuffle=False).fetch([0, 1])
    expected = [USER, *SEEN, A, ASK, ASSISTANT]
    assert [ids.tolist() for ids in prompts.prompt_ids] == [expected, expected]


def test_prompts_too_long_by_the_tokens_of_pictures_are_left_out_and_counted(tmp_path: Path) -> None:
    # 84 x 84 is 3 x 3 merged patches: 9 tokens beside start, end and the word
    rows = [{"prompt": "<image> a", "images": picture(84, 84)}, {"prompt": "<image> b", "images": ONE}]
    path = write_parquet(tmp_path / "data" / "t.parquet", rows)
    dataset = open_pictures(tmp_path, path, max_prompt_tokens=11)
    assert (len(dataset), dataset.num_filtered) == (1, 1)
    assert dataset.fetch([0]).prompt_ids[0].tolist() == [*SEEN, B]


def test_another_picture_of_one_size_is_other_data(tmp_path: Path) -> None:
    def fingerprint(name: str, data: bytes) -> str:
        path = write_parquet(tmp_path / name / "t.parquet", [{"prompt": "<image> a", "images": data}])
        return open_pictures(tmp_path, path).fingerprint

    assert fingerprint("a", ONE) == fingerprint("b", ONE) != fingerprint("c", picture(56, 56, seed=3))


@pytest.mark.parametrize(
    ("prompt", "num_pictures", "words"),
    [
        ("<image> <image> a", 1, "the prompt has 2 places for pictures, and the row 1 pictures"),
        ("a", 1, "the prompt has 0 places for pictures, and the row 1 pictures"),
        ("<image> a", 0, "the prompt has 1 places for pictures, and the row 0 pictures"),
        ("<|pad|> <image> a", 1, "the prompt has 2 places for pictures"),
    ],
)
def test_places_and_pictures_are_as_many(tmp_path: Path, prompt: str, num_pictures: int, words: str) -> None:
    rows = [{"prompt": prompt, "images": [ONE] * num_pictures}]
    schema = pa.schema([("prompt", pa.string()), ("images", pa.list_(pa.binary()))])
    path = tmp_path / "t.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
    message = refusal(tmp_path, path)
    assert words in message and "row 1 of" in message


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3.5, "the column 'images' holds a float, not pictures; write encoded bytes"),
        ("", "the column 'images' holds an empty text"),
        ({"url": "x"}, "the column 'images' holds a dict"),
        ("lost.png", "cannot be read: No such file or directory; correct the column 'images', or put the file there"),
        ("zero\0byte.png", "cannot be read: embedded null byte"),
        ("circle.png", "'circle.png' below"),
        ("pipe.png", "cannot be read: it is not a file"),
        (".", "cannot be read: it is not a file"),
        ([None, "x.png"], "the column 'images' has a list with a null in place of a picture"),
        ([{"bytes": None, "path": None}, "x.png"], "a list with a null in place of a picture"),
        ("../secret.png", "'../secret.png' is not below"),
        ("/etc/passwd", "'/etc/passwd' is not below"),
        ("link.png", "'link.png' is not below"),
        ("https://host/a.png", "write data.image.allowHttp: true"),
        ("ftp://host/a.png", "data is not read from ftp://"),
        ("data:image/png,abc", "a data URL is data:image/png;base64"),
        ("data:image/png;base64,a", "base64 is damaged"),
        ("page.png", "a page or a message in place of the picture"),
        ("cut.png", "damaged or incomplete"),
    ],
)
def test_what_is_no_picture_is_named_with_its_row(tmp_path: Path, value: Any, words: str) -> None:
    path = write_lines(tmp_path / "data" / "t.jsonl", [{"prompt": "<image> a", "images": value}])
    for place in (tmp_path / "secret.png", tmp_path / "data" / "x.png"):
        place.write_bytes(ONE)
    (tmp_path / "data" / "link.png").symlink_to(tmp_path / "secret.png")
    (tmp_path / "data" / "circle.png").symlink_to("circle.png")
    os.mkfifo(tmp_path / "data" / "pipe.png")
    (tmp_path / "data" / "page.png").write_bytes(b"<html>404</html>")
    (tmp_path / "data" / "cut.png").write_bytes(ONE[:-2000])
    message = refusal(tmp_path, path)
    assert words in message and "row 1 of" in message


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "data" / "t.jsonl", [{"prompt": "a", "image": "x"}])
    assert "no column 'images'; did you mean 'image'?" in refusal(tmp_path, path)


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "image_url", "image_url": "https://host/a.png"}, "holds a picture itself"),
        ({"type": "audio"}, "has the type 'audio'; write text or image"),
    ],
)
def test_parts_of_messages_that_are_no_places_are_refused(tmp_path: Path, part: dict[str, Any], words: str) -> None:
    rows = [{"prompt": [{"role": "user", "content": [part]}], "images": "x.png"}]
    path = write_lines(tmp_path / "data" / "t.jsonl", rows)
    (tmp_path / "data" / "x.png").write_bytes(ONE)
    assert words in refusal(tmp_path, path)


def test_a_tokenizer_without_the_tokens_of_pictures_is_refused() -> None:
    # the words up to the pad token, so that nothing has the id of the end
    with pytest.raises(InvalidJob, match=r"does not have the tokens \[5, 6, 7\]"):
        PicturePlaces(vision_tokenizer(words=WORDS[:7]), PictureTokens(START, PAD, END))


def test_a_picture_that_grew_since_the_data_was_looked_at_is_refused(tmp_path: Path) -> None:
    path = lines_of_paths(tmp_path)
    dataset = open_pictures(tmp_path, path, max_prompt_tokens=7)
    (tmp_path / "data" / "pictures" / "one.png").write_bytes(picture(84, 84))
    with pytest.raises(BadData, match="12 tokens, and had at most maxPromptTokens: 7"):
        dataset.fetch([0])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("s3://b/d/t.jsonl", "s3://b/d/x/1.png"),
        ("s3://b/d/parts", "s3://b/d/parts/x/1.png"),
        ("s3://b/d/*.jsonl", "s3://b/d/x/1.png"),
    ],
)
def test_a_path_in_a_store_begins_at_the_folder_of_the_data(path: str, expected: str) -> None:
    files = PictureFiles(path, "images")
    assert files.url_of("x/1.png", "row 1") == expected
    with pytest.raises(BadData, match="is not below s3://b/d"):
        files.url_of("../1.png", "row 1")


def test_pictures_are_read_ahead_with_their_prompts(tmp_path: Path) -> None:
    rows = [{"prompt": "<image> a", "images": picture(56, 56, seed=i)} for i in range(4)]
    dataset = open_pictures(tmp_path, write_parquet(tmp_path / "t.parquet", rows), shuffle=False)
    dataset.read_ahead(np.arange(4))
    assert images(dataset, [0, 1, 2, 3]) == [[row["images"]] for row in rows]


def test_json_of_records_reads_the_path_where_there_are_no_bytes(tmp_path: Path) -> None:
    row = {"prompt": "<image> a", "images": [{"bytes": None, "path": "one.png"}]}
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (tmp_path / "one.png").write_bytes(ONE)
    assert images(open_pictures(tmp_path, path), [0]) == [[ONE]]


FILM, LONG = animation(frames_of(4)), animation(frames_of(8, seed=1))
"""Of one second, two patches of frames, and of two seconds, likewise: four frames are the least."""


def of_frames(times: list[str]) -> list[int]:
    """Tokens of a video for Qwen3-VL: a time is two words that the tokenizer does not know."""
    return [token for _ in times for token in (1, 1, START, VIDEO_PAD, END)]


@pytest.mark.parametrize(
    ("model_type", "seen"),
    [
        ("qwen2_5_vl", [START, VIDEO_PAD, VIDEO_PAD, END]),
        ("qwen3_vl", of_frames(["<0.1 seconds>", "<0.6 seconds>"])),
    ],
)
def test_videos_have_their_places_between_pictures(tmp_path: Path, model_type: str, seen: list[int]) -> None:
    """In the order of places, whatever their columns."""
    rows = [{"prompt": "<video> a <image> b", "images": ONE, "videos": [FILM]}]
    path = write_parquet(tmp_path / "data" / "t.parquet", rows)
    dataset = open_pictures(tmp_path, path, videos="videos", model_type=model_type)
    prompts = dataset.fetch([0])
    # Qwen3-VL merges 32 x 32 pixels: a picture of 56 x 56 has 2 x 2 tokens there, too
    assert prompts.prompt_ids[0].tolist() == [*seen, A, *SEEN, B]
    assert images(dataset, [0]) == [[FILM, ONE]]
    if model_type == "qwen3_vl":
        assert prompts.texts[0].startswith("<0.1 seconds><|start|><|video|><|end|><0.6 seconds><|start|>")


def test_videos_come_alone_as_files_and_in_parts_of_messages(tmp_path: Path) -> None:
    parts = [{"type": "video"}, {"type": "text", "text": " a <video>"}]
    row = {
        "prompt": [{"role": "user", "content": parts}],
        "film": ["films/one.mp4", {"bytes": None, "path": "two.png"}],
    }
    path = write_lines(tmp_path / "data" / "t.jsonl", [row])
    (tmp_path / "data" / "films").mkdir()
    one = video_file(frames_of(4))
    (tmp_path / "data" / "films" / "one.mp4").write_bytes(one)
    (tmp_path / "data" / "two.png").write_bytes(LONG)
    dataset = open_pictures(tmp_path, path, column=None, videos="film")
    shown = [START, VIDEO_PAD, VIDEO_PAD, END]
    assert dataset.fetch([0]).prompt_ids[0].tolist() == [USER, *shown, A, *shown, ASSISTANT]
    assert images(dataset, [0]) == [[one, LONG]]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "<video> <video> a", "videos": [FILM]}, "the prompt has 2 places for videos, and the row 1 videos"),
        ({"prompt": "a", "videos": [FILM]}, "the prompt has 0 places for videos, and the row 1 videos; write <video>"),
        ({"prompt": "<video> a", "videos": [ONE]}, "the bytes are no video of MP4"),
        ({"prompt": "<image> a", "images": FILM}, "the column 'images' holds a video, or an animated picture"),
        ({"prompt": "<video> a", "videos": "lost.mp4"}, "the video .lost.mp4. below .* cannot be read"),
        ({"prompt": "<video> a", "videos": "https://host/a.mp4"}, "videos are not fetched from web servers"),
        ({"prompt": "<video> a", "videos": 3.5}, "the column 'videos' holds a float, not videos"),
    ],
)
@pytest.mark.parametrize("model_type", ["qwen2_5_vl", "qwen3_vl"])
def test_what_is_no_video_is_named_with_its_row(
    tmp_path: Path, row: dict[str, Any], words: str, model_type: str
) -> None:
    schema = {"prompt": pa.string(), "images": pa.list_(pa.binary()), "videos": pa.list_(pa.binary())}
    if isinstance(row.get("videos"), (str, float)):
        path = write_lines(tmp_path / "data" / "t.jsonl", [{"images": None, **row}])
    else:
        lists = {name: row.get(name) if name == "prompt" else _listed(row.get(name)) for name in schema}
        path = str(tmp_path / "t.parquet")
        pq.write_table(pa.Table.from_pylist([lists], pa.schema(list(schema.items()))), path)
    message = refusal(tmp_path, path, videos="videos", model_type=model_type)
    assert re.search(words, message) and "row 1 of" in message


def _listed(value: Any) -> list[bytes]:
    return [] if value is None else value if isinstance(value, list) else [value]
