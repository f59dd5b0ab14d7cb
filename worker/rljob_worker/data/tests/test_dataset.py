"""Prompts from real files, through a real tokenizer."""

import datetime
import fcntl
import json
import os
import shutil
from dataclasses import dataclass

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rljob_worker.data import disk_source
from rljob_worker.data.dataset import PromptDataset
from rljob_worker.data.find_or_make import Beat
from rljob_worker.data.source import DataAccess
from rljob_worker.data.tests.tokenizers_for_tests import TEMPLATE, words, words_tokenizer
from rljob_worker.errors import BadData, InvalidJob, StorageError
from rljob_worker.tests.forking import forking


@dataclass
class Data:
    prompt_column: str = "prompt"
    max_prompt_tokens: int = 8
    shuffle: bool = True
    apply_chat_template: bool = False
    system_prompt: str | None = None


@dataclass
class File:
    path: str
    name: str | None = None
    weight: float | None = None
    subset: str | None = None
    split: str | None = None


@pytest.fixture(scope="module")
def plain():
    return words_tokenizer()


@pytest.fixture(scope="module")
def chat():
    return words_tokenizer(TEMPLATE)


def numbered(n, start=0):
    """Prompts "a", "a b", "a b c", ... with answers that say their place."""
    return [{"prompt": " ".join("abcdefgh"[: i % 3 + 1]), "answer": f"answer {start + i}"} for i in range(n)]


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_parquet(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def open_data(tmp_path, tokenizer, *paths, columns=("answer",), seed=None, max_rows=None, arguments=None, **data):
    return PromptDataset(
        Data(**data),
        sources=[path if isinstance(path, File) else File(str(path)) for path in paths],
        columns=columns,
        tokenizer=tokenizer,
        access=DataAccess(tmp_path / "cache"),
        seed=seed,
        max_rows=max_rows,
        template_arguments=arguments,
    )


def refusal(tmp_path, tokenizer, *paths, kind=BadData, **values):
    with pytest.raises(kind) as caught:
        open_data(tmp_path, tokenizer, *paths, **values)
    return str(caught.value)


def make_lines(tmp_path, rows):
    return write_lines(tmp_path / "train.jsonl", rows)


def make_array(tmp_path, rows):
    path = tmp_path / "train.json"
    path.write_text(json.dumps(rows))
    return str(path)


def make_parquet(tmp_path, rows):
    return write_parquet(tmp_path / "train.parquet", rows)


def make_pattern(tmp_path, rows):
    write_parquet(tmp_path / "parts" / "0.parquet", rows[:2])
    write_parquet(tmp_path / "parts" / "1.parquet", rows[2:])
    return str(tmp_path / "parts" / "*.parquet")


def make_folder(tmp_path, rows):
    make_pattern(tmp_path, rows)
    (tmp_path / "parts" / "README.md").write_text("about the data")
    return str(tmp_path / "parts")


def make_saved(tmp_path, rows):
    path = str(tmp_path / "saved")
    datasets.Dataset.from_list(rows[::-1]).select(range(len(rows) - 1, -1, -1)).save_to_disk(path)
    return path


@pytest.mark.parametrize("make", [make_lines, make_array, make_parquet, make_pattern, make_folder, make_saved])
def test_every_kind_of_file_gives_the_same_prompts(tmp_path, plain, make):
    rows = numbered(5)
    path = make(tmp_path, rows)
    dataset = open_data(tmp_path, plain, path)
    prompts = dataset.fetch(np.arange(5))
    assert [words(ids) for ids in prompts.prompt_ids] == ["<s> " + row["prompt"] for row in rows]
    assert prompts.texts == [row["prompt"] for row in rows]
    assert prompts.columns["answer"].to_list() == [row["answer"] for row in rows]
    named = open_data(tmp_path, plain, File(path, "same"))
    assert named.fingerprint == open_data(tmp_path, plain, File(make_lines(tmp_path / "x", rows), "same")).fingerprint


def test_sources_follow_one_another_and_name_their_rows(tmp_path, plain):
    first = File(write_lines(tmp_path / "one.jsonl", numbered(3)), "first")
    second = File(write_parquet(tmp_path / "two.parquet", numbered(2, start=3)))
    dataset = open_data(tmp_path, plain, first, second)
    prompts = dataset.fetch(np.array([4, 0, 3, 2]))
    assert prompts.source.to_list() == ["two", "first", "two", "first"]
    assert prompts.columns["answer"].to_list() == ["answer 4", "answer 0", "answer 3", "answer 2"]


def test_sources_with_weights_are_mixed(tmp_path, plain):
    first = write_lines(tmp_path / "one.jsonl", numbered(3))
    second = write_parquet(tmp_path / "two.parquet", numbered(2, start=3))
    dataset = open_data(tmp_path, plain, File(first, weight=3), File(second, weight=1))
    prompts = dataset.fetch(np.arange(8))
    # of four prompts the third is of the second source; the first source begins again after its three rows
    assert prompts.source.to_list() == ["one", "one", "two", "one"] * 2
    assert prompts.columns["answer"].to_list() == [f"answer {i}" for i in (0, 1, 3, 2, 0, 1, 4, 2)]
    only = open_data(tmp_path, plain, File(first, weight=0), File(second, weight=1))
    assert only.fetch(np.arange(3)).columns["answer"].to_list() == ["answer 3", "answer 4", "answer 3"]


def test_other_shares_have_another_fingerprint(tmp_path, plain):
    paths = [write_lines(tmp_path / name, numbered(3)) for name in ("one.jsonl", "two.jsonl")]

    def fingerprint(*weights):
        return open_data(tmp_path, plain, *map(File, paths, (None, None), weights)).fingerprint

    before = fingerprint(0.75, 0.25)
    assert before == fingerprint(3, 1)
    assert len({before, fingerprint(None, None), fingerprint(1, 3), fingerprint(1, 1)}) == 4


def test_a_source_of_which_nothing_is_left_cannot_be_drawn_from(tmp_path, plain):
    short = write_lines(tmp_path / "short.jsonl", [{"prompt": "a", "answer": "1"}])
    long = write_lines(tmp_path / "long.jsonl", [{"prompt": "a b c", "answer": "1"}])
    both = [File(short, weight=1), File(long, weight=1)]
    message = refusal(tmp_path, plain, *both, max_prompt_tokens=2)
    assert message.startswith(f"every prompt of {long} is longer than maxPromptTokens: 2")
    unused = [File(short, weight=1), File(long, weight=0)]
    assert len(open_data(tmp_path, plain, *unused, max_prompt_tokens=2)) == 1
    assert len(open_data(tmp_path, plain, short, long, max_prompt_tokens=2)) == 1


def test_shuffled_epochs_hold_every_row_once(tmp_path, plain):
    dataset = open_data(tmp_path, plain, make_lines(tmp_path, numbered(7)), seed=1)
    answers = dataset.fetch(np.arange(14)).columns["answer"].to_list()
    assert sorted(answers[:7]) == sorted(answers[7:]) == [f"answer {i}" for i in range(7)]
    assert answers[:7] != answers[7:] and answers[:7] != sorted(answers[:7])
    in_order = open_data(tmp_path, plain, make_lines(tmp_path, numbered(7)), seed=1, shuffle=False)
    assert in_order.fetch(np.arange(7)).columns["answer"].to_list() == sorted(answers[:7])


def test_no_ordinals_give_no_prompts(tmp_path, plain):
    prompts = open_data(tmp_path, plain, make_lines(tmp_path, numbered(3))).fetch(np.array([], np.int64))
    assert prompts.prompt_ids == [] and prompts.columns["answer"].num_rows == prompts.source.num_rows == 0


def test_prompts_that_are_too_long_are_left_out_once_and_counted(tmp_path, plain, caplog):
    path = make_lines(tmp_path, numbered(6))  # 1 2 3 1 2 3 words and <s>
    dataset = open_data(tmp_path, plain, path, max_prompt_tokens=3)
    assert (len(dataset), dataset.num_filtered) == (4, 2)
    assert dataset.fetch(np.arange(4)).columns["answer"].to_list() == ["answer 0", "answer 1", "answer 3", "answer 4"]
    assert "left out 2 prompts longer than maxPromptTokens: 3, kept 4" in caplog.text
    caplog.clear()
    again = open_data(tmp_path, plain, path, max_prompt_tokens=3)
    assert (len(again), again.num_filtered, again.fingerprint) == (4, 2, dataset.fingerprint)
    assert not caplog.text  # read from the cache


def test_ranks_that_find_a_survey_take_no_lock_for_it(tmp_path, plain):
    path = make_lines(tmp_path, numbered(6))
    made = open_data(tmp_path, plain, path).fingerprint
    (lock,) = (tmp_path / "cache" / "surveys").glob("*.lock")
    lock.unlink()
    assert open_data(tmp_path, plain, path).fingerprint == made
    assert not lock.exists()


@pytest.mark.parametrize("make", [make_lines, make_parquet, make_pattern, make_saved])
def test_ranks_that_find_everything_never_take_a_lock(tmp_path, plain, monkeypatch, make):
    """When thousands start together one converts and surveys: nobody queues for the library's lock either."""
    path = make(tmp_path, numbered(6))
    made = open_data(tmp_path, plain, path)

    def unwanted(*_):
        raise AssertionError("a lock, though everything is there")

    monkeypatch.setattr(fcntl, "flock", unwanted)
    result = open_data(tmp_path, plain, path)
    assert (len(result), result.fingerprint) == (len(made), made.fingerprint)
    assert result.fetch(np.arange(6)).texts == made.fetch(np.arange(6)).texts


def test_a_file_that_changed_is_converted_anew_and_so_is_what_somebody_removed(tmp_path, plain):
    path = make_lines(tmp_path, numbered(6))
    made = open_data(tmp_path, plain, path).fingerprint
    shutil.rmtree(tmp_path / "cache" / "json")
    assert open_data(tmp_path, plain, path).fingerprint == made
    write_lines(tmp_path / "train.jsonl", numbered(6, start=6))
    assert open_data(tmp_path, plain, path).fetch([0]).columns["answer"].row(0) == "answer 6"


def test_a_long_survey_shows_life_with_every_batch(tmp_path, plain, monkeypatch):
    touched = []
    monkeypatch.setattr(disk_source, "BATCH_ROWS", 2)
    monkeypatch.setattr(Beat, "__call__", lambda beat: touched.append(beat))
    open_data(tmp_path, plain, make_lines(tmp_path, numbered(5)))
    converting, *survey_thread = touched
    assert len(survey_thread) == 1 + 3 and set(survey_thread) == {survey_thread[0]} != {converting}


def test_only_so_many_rows_of_each_source(tmp_path, plain):
    first, second = (
        write_lines(tmp_path / "a.jsonl", numbered(5)),
        write_lines(tmp_path / "b.jsonl", numbered(5, start=5)),
    )
    dataset = open_data(tmp_path, plain, first, second, max_rows=2, max_prompt_tokens=3)
    assert dataset.fetch(np.arange(4)).columns["answer"].to_list() == ["answer 0", "answer 1", "answer 5", "answer 6"]


def test_nothing_short_enough(tmp_path, plain):
    message = refusal(tmp_path, plain, make_lines(tmp_path, numbered(3)), max_prompt_tokens=1)
    assert "every prompt of" in message and "is longer than maxPromptTokens: 1" in message


def messages(*contents):
    return [{"role": role, "content": text} for role, text in zip(("user", "assistant") * 3, contents, strict=False)]


@pytest.mark.parametrize("make", [make_lines, make_parquet, make_saved])
def test_chat_messages_go_through_the_template(tmp_path, chat, make):
    rows = [{"prompt": messages("a"), "answer": "1"}, {"prompt": messages("a", "b", "c"), "answer": "2"}]
    prompts = open_data(tmp_path, chat, make(tmp_path, rows)).fetch(np.arange(2))
    assert [words(ids) for ids in prompts.prompt_ids] == [
        "<user> a <assistant>",
        "<user> a <assistant> b <user> c <assistant>",
    ]
    assert prompts.texts[0] == "<user> a <assistant>"


def test_a_text_is_wrapped_and_a_system_prompt_put_before(tmp_path, chat):
    path = make_lines(tmp_path, [{"prompt": "a b", "answer": "1"}])
    wrapped = open_data(tmp_path, chat, path, apply_chat_template=True)
    assert words(wrapped.fetch([0]).prompt_ids[0]) == "<user> a b <assistant>"
    kind = open_data(tmp_path, chat, path, apply_chat_template=True, system_prompt="be kind")
    assert words(kind.fetch([0]).prompt_ids[0]) == "<system> be kind <user> a b <assistant>"
    bare = open_data(tmp_path, chat, path)
    assert words(bare.fetch([0]).prompt_ids[0]) == "<s> a b"


def test_messages_without_a_template(tmp_path, plain):
    path = make_lines(tmp_path, [{"prompt": messages("a"), "answer": "1"}])
    message = refusal(tmp_path, plain, path, kind=InvalidJob)
    assert f"row 1 of {path} holds chat messages, but the model at 'models/tiny' has no chat template" in message
    text = make_lines(tmp_path, numbered(1))
    assert "data.applyChatTemplate is set" in refusal(tmp_path, plain, text, kind=InvalidJob, apply_chat_template=True)


def test_a_system_prompt_where_it_cannot_go(tmp_path, chat):
    text = make_lines(tmp_path, numbered(1))
    assert "data.systemPrompt needs chat messages" in refusal(tmp_path, chat, text, kind=InvalidJob, system_prompt="x")
    twice = make_lines(tmp_path, [{"prompt": [{"role": "system", "content": "a"}], "answer": "1"}])
    assert "begins with a system message" in refusal(tmp_path, chat, twice, kind=InvalidJob, system_prompt="x")


def test_arguments_reach_the_chat_template(tmp_path):
    tokenizer = words_tokenizer(TEMPLATE + "{% if thinking is defined and not thinking %} be{% endif %}")
    path = make_lines(tmp_path, [{"prompt": messages("a"), "answer": "1"}])
    short = open_data(tmp_path, tokenizer, path, max_prompt_tokens=3)
    assert words(short.fetch([0]).prompt_ids[0]) == "<user> a <assistant>"
    for arguments, rendered in (({"thinking": False}, " be"), ({"thinking": True}, "")):
        data = open_data(tmp_path, tokenizer, path, arguments=arguments)
        assert words(data.fetch([0]).prompt_ids[0]) == "<user> a <assistant>" + rendered
    # what the cache says of prompts without arguments is not true of one that an argument makes longer
    longer = {"arguments": {"thinking": False}, "max_prompt_tokens": 3}
    assert "longer than maxPromptTokens" in refusal(tmp_path, tokenizer, path, **longer)


def test_an_argument_that_the_chat_template_never_reads_changes_nothing_and_is_refused(tmp_path, chat, plain):
    text = make_lines(tmp_path, numbered(1))
    message = refusal(tmp_path, chat, text, kind=InvalidJob, arguments={"thinking": False})
    assert message == "models.chatTemplate.thinking is never read by the model's chat template; it reads no argument"
    tokenizer = words_tokenizer(
        TEMPLATE + "{% generation %}{{ style }}{%- endgeneration -%}{% for i in range(2) %}.{% endfor %}"
    )
    assert "it reads style" in refusal(tmp_path, tokenizer, text, kind=InvalidJob, arguments={"stile": 1})
    assert "models.chatTemplate needs chat messages" in refusal(
        tmp_path, tokenizer, text, kind=InvalidJob, arguments={"style": 1}
    )
    assert "models.chatTemplate is set" in refusal(tmp_path, plain, text, kind=InvalidJob, arguments={"style": 1})


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (3, "row 2 of train.jsonl: the prompt is a int, not a text or a list of chat messages"),
        (None, "row 2 of train.jsonl: the prompt is nothing"),
        ([], "row 2 of train.jsonl: the prompt is an empty list"),
        (" \n", "row 2 of train.jsonl: the prompt is empty"),
        ([{"role": "user"}], "row 2 of train.jsonl: a chat message needs 'content' as text, and has nothing"),
        ([{"role": "user", "content": [{"type": "image"}]}], "needs 'content' as text, and has a list of dict"),
        ([{"role": "judge", "content": "a"}], "the model's chat template refuses the messages: unknown role judge"),
    ],
)
def test_a_bad_prompt_is_named_with_its_row(tmp_path, monkeypatch, prompt, words):
    monkeypatch.chdir(tmp_path)
    tokenizer = words_tokenizer(TEMPLATE)
    write_lines(tmp_path / "train.jsonl", [{"prompt": "a", "answer": "1"}, {"prompt": prompt, "answer": "2"}])
    assert words in refusal(tmp_path, tokenizer, "train.jsonl")


def test_columns_that_are_missing_empty_or_not_text(tmp_path, plain):
    path = make_parquet(tmp_path, numbered(2))
    message = refusal(tmp_path, plain, path, columns=["anwser"])
    assert "has no column 'anwser'; did you mean 'answer'? it has prompt, answer" in message
    assert "has no column 'question'" in refusal(tmp_path, plain, path, prompt_column="question")
    rows = [
        {"prompt": "a", "answer": {"value": 42, "unit": "m"}},
        {"prompt": "b", "answer": {"value": None, "unit": "m"}},
    ]
    path = make_lines(tmp_path, rows)
    assert "row 2 of" in refusal(tmp_path, plain, path, columns=["answer.value"])
    dataset = open_data(tmp_path, plain, path, columns=["answer.unit", "answer"])
    assert dataset.fetch([0]).columns["answer.unit"].to_list() == ["m"]
    assert json.loads(dataset.fetch([0]).columns["answer"].row(0)) == {"value": 42, "unit": "m"}


def test_a_column_of_records_travels_as_readable_text(tmp_path, plain):
    path = make_parquet(tmp_path, [{"prompt": "a", "answer": {"unit": "µm", "at": datetime.datetime(2026, 1, 2)}}])
    (text,) = open_data(tmp_path, plain, path).fetch([0]).columns["answer"].to_list()
    assert text == '{"unit": "µm", "at": "2026-01-02 00:00:00"}'


def test_a_parquet_column_that_the_job_does_not_use_may_be_of_any_type(tmp_path, plain):
    table = {"prompt": ["a", "a b"], "answer": ["1", "2"]}
    table["scores"] = pa.array([[("x", 1)], []], pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table(table), tmp_path / "map.parquet")
    assert len(open_data(tmp_path, plain, tmp_path / "map.parquet")) == 2
    problem = refusal(tmp_path, plain, tmp_path / "map.parquet", columns=("scores",))
    assert "map.parquet cannot be read: " in problem


def test_nothing_at_the_path(tmp_path, plain):
    make_lines(tmp_path, numbered(1))
    assert "did you mean 'train.jsonl'?" in refusal(tmp_path, plain, tmp_path / "trian.jsonl")
    assert "no file matches" in refusal(tmp_path, plain, tmp_path / "*.parquet")
    assert "write hf://datasets/openai/gsm8k to read" in refusal(tmp_path, plain, "openai/gsm8k")
    (tmp_path / "void").mkdir()
    assert "is empty" in refusal(tmp_path, plain, tmp_path / "void")


def test_files_that_cannot_be_read(tmp_path, plain):
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and then nothing")
    assert "broken.parquet cannot be read: " in refusal(tmp_path, plain, tmp_path / "broken.parquet")
    (tmp_path / "empty.jsonl").touch()
    assert "empty.jsonl is empty" in refusal(tmp_path, plain, tmp_path / "empty.jsonl")
    (tmp_path / "half.jsonl").write_text('{"prompt": "a", "answer": "b"}\n{"prompt": \n')
    assert "line 2 of" in refusal(tmp_path, plain, tmp_path / "half.jsonl")
    (tmp_path / "list.jsonl").write_text('{"prompt": "a", "answer": "b"}\n[1]\n')
    assert "line 2 of" in refusal(tmp_path, plain, tmp_path / "list.jsonl")
    (tmp_path / "notes.txt").write_text("a")
    assert "a data set is parquet files, JSON-lines files, or" in refusal(tmp_path, plain, tmp_path / "notes.txt")
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), tmp_path / "none.parquet")
    assert "has no rows" in refusal(tmp_path, plain, tmp_path / "none.parquet")


def test_text_that_is_none_is_named_with_its_place(tmp_path, plain):
    lines = '{"prompt": "a", "answer": "b"}\n{"prompt": "é", "answer": "b"}\n'
    (tmp_path / "latin.jsonl").write_bytes(lines.encode("latin-1"))
    assert "row 2 of " in (said := refusal(tmp_path, plain, tmp_path / "latin.jsonl")), said
    assert "latin.jsonl holds text that is not UTF-8: " in said
    prompts = pa.StringArray.from_buffers(2, pa.array([0, 1, 2], pa.int32()).buffers()[1], pa.py_buffer(b"a\xff"))
    pq.write_table(pa.table({"prompt": prompts, "answer": ["b", "b"]}), tmp_path / "latin.parquet")
    assert "latin.parquet holds text that is not UTF-8: " in refusal(tmp_path, plain, tmp_path / "latin.parquet")
    (tmp_path / "half.jsonl").write_text(json.dumps({"prompt": "a", "answer": "\ud83d"}) + "\n")
    assert "line 1 of " in (said := refusal(tmp_path, plain, tmp_path / "half.jsonl")) and "surrogates" in said
    (tmp_path / "deep.jsonl").write_text('{"prompt": ' + "[" * 1100 + "]" * 1100 + "}\n")
    assert "line 1 of " in (said := refusal(tmp_path, plain, tmp_path / "deep.jsonl")) and "recursion" in said


def test_both_halves_of_an_escaped_character_are_one(tmp_path, plain):
    dataset = open_data(tmp_path, plain, write_lines(tmp_path / "a.jsonl", [{"prompt": "a", "answer": "\U0001f600"}]))
    assert dataset.fetch([0]).columns["answer"].to_list() == ["\U0001f600"]


def test_a_folder_with_several_splits(tmp_path, plain):
    one = datasets.Dataset.from_list(numbered(2))
    datasets.DatasetDict({"train": one, "test": one}).save_to_disk(str(tmp_path / "both"))
    message = refusal(tmp_path, plain, tmp_path / "both")
    assert f"name one: {tmp_path}/both/test or {tmp_path}/both/train" in message
    assert len(open_data(tmp_path, plain, tmp_path / "both" / "train")) == 2


def test_a_cache_that_cannot_be_written(tmp_path, plain):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "surveys").touch()
    path = make_saved(tmp_path, numbered(2))
    assert "the data cache" in refusal(tmp_path, plain, path, kind=StorageError)


@pytest.mark.parametrize(("write", "kind"), [(write_lines, "jsonl"), (write_parquet, "parquet")])
def test_a_new_file_is_named_when_the_next_epoch_begins(tmp_path, plain, write, kind):
    folder = tmp_path / "questions"
    write(folder / f"0.{kind}", numbered(5))
    dataset = open_data(tmp_path, plain, folder, seed=1)
    new = write(folder / f"1.{kind}", numbered(3))
    dataset.fetch(np.arange(1, 5))
    with pytest.raises(BadData, match=f"no longer what this run began with: {new} is new; put the files back"):
        dataset.fetch(np.arange(4, 8))


def test_changed_data_have_another_fingerprint(tmp_path, plain):
    rows = numbered(4)
    before = open_data(tmp_path, plain, make_lines(tmp_path, rows)).fingerprint
    assert open_data(tmp_path / "copy", plain, make_lines(tmp_path / "copy", rows)).fingerprint == before
    swapped = [rows[1], rows[0], *rows[2:]]
    other_answer = [{**rows[0], "answer": "another"}, *rows[1:]]
    other_prompt = [{**rows[0], "prompt": "h"}, *rows[1:]]
    changed = [
        open_data(tmp_path, plain, make_lines(tmp_path, change)).fingerprint
        for change in (swapped, other_answer, other_prompt, rows[:3])
    ]
    assert len({before, *changed}) == 5


def fingerprint_in_process(arguments):
    tmp_path, path = arguments
    return open_data(tmp_path, words_tokenizer(), path).fingerprint


@pytest.mark.slow
def test_ranks_that_start_together_share_the_cache(tmp_path, plain):
    path = make_parquet(tmp_path, numbered(500))
    with forking().Pool(2) as ranks:
        result = ranks.map(fingerprint_in_process, [(tmp_path, path)] * 2, chunksize=1)
    assert set(result) == {open_data(tmp_path, plain, path).fingerprint}
    leftover = [name for name in os.listdir(tmp_path / "cache" / "surveys") if "partial" in name]
    assert leftover == []
