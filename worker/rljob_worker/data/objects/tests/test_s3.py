"""Data sets on a real S3 server: the same rows as from a disk, only those that are asked for, and every way to fail."""

import builtins
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rljob_worker.data.dataset import PromptDataset
from rljob_worker.data.objects import row_groups
from rljob_worker.data.objects.tests.clock import Clock, patience
from rljob_worker.data.source import DataAccess
from rljob_worker.data.tests.test_dataset import Data, File, numbered, write_lines
from rljob_worker.data.tests.tokenizers_for_tests import TEMPLATE, words_tokenizer
from rljob_worker.errors import BadData, DeadlineExceeded, InvalidJob
from rljob_worker.stages.draws.assembly import share_of_rank
from rljob_worker.storage.tests.s3_server import SLOW_DOWN, s3_bucket


@pytest.fixture(scope="module")
def tokenizer():
    return words_tokenizer(TEMPLATE)


@pytest.fixture
def s3(monkeypatch):
    with s3_bucket("data", monkeypatch) as server:
        yield server


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(rows, row_group_size):
    into = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), into, row_group_size=row_group_size)
    return into.getvalue()


def open_s3(tmp_path, tokenizer, path, *, clock=None, attempt="1", seed=None, columns=("answer",), **data):
    return PromptDataset(
        Data(**data),
        sources=[File(path, "same")],
        columns=columns,
        tokenizer=tokenizer,
        access=DataAccess(tmp_path / "cache", attempt, patience(clock or Clock())),
        seed=seed,
    )


def answers(dataset, ordinals):
    return dataset.fetch(ordinals).columns["answer"].to_list()


def put_lines(s3, rows):
    s3.put("data/one.jsonl", lines(rows))
    return "s3://data/one.jsonl"


def put_parts(s3, rows):
    s3.put("data/p/0.jsonl", lines(rows[:2]))
    s3.put("data/p/1.jsonl", b"\n" + lines(rows[2:]).rstrip())  # a blank line, and no end of the last
    s3.put("data/p/README.md", b"about the data")
    return "s3://data/p"


def put_pattern(s3, rows):
    put_parts(s3, rows)
    return "s3://data/p/*.jsonl"


def put_groups(s3, rows):
    s3.put("data/q/0.parquet", parquet(rows[:4], 3))
    s3.put("data/q/1.parquet", parquet(rows[4:], 100))
    return "s3://data/q/*.parquet"


PUTS = [put_lines, put_parts, put_pattern, put_groups]


@pytest.mark.parametrize("put", PUTS)
def test_a_store_gives_the_same_prompts_as_a_disk(tmp_path, tokenizer, s3, put):
    rows = numbered(7)
    on_disk = open_s3(tmp_path, tokenizer, write_lines(tmp_path / "same.jsonl", rows), seed=3)
    dataset = open_s3(tmp_path, tokenizer, put(s3, rows), seed=3)
    ordinals = np.array([5, 0, 12, 3, 3, 7])
    assert answers(dataset, ordinals) == answers(on_disk, ordinals)
    assert [ids.tolist() for ids in dataset.fetch(ordinals).prompt_ids] == [
        ids.tolist() for ids in on_disk.fetch(ordinals).prompt_ids
    ]
    assert dataset.fingerprint == on_disk.fingerprint


@pytest.mark.parametrize("put", PUTS)
def test_prompts_that_are_too_long_are_left_out(tmp_path, tokenizer, s3, put):
    dataset = open_s3(tmp_path, tokenizer, put(s3, numbered(7)), max_prompt_tokens=3)  # 1 2 3 1 2 3 1 words and <s>
    assert answers(dataset, np.arange(5)) == ["answer 0", "answer 1", "answer 3", "answer 4", "answer 6"]
    assert (len(dataset), dataset.num_filtered) == (5, 2)


@pytest.mark.parametrize("put", [put_lines, put_groups])
def test_messages_and_columns_of_records_come_from_a_store_too(tmp_path, tokenizer, s3, put):
    rows = [
        {"prompt": [{"role": "user", "content": word}], "answer": {"value": word * 2, "unit": "µm"}} for word in "abcde"
    ]
    dataset = open_s3(tmp_path, tokenizer, put(s3, rows), columns=("answer.value", "answer"))
    prompts = dataset.fetch([3])
    assert prompts.texts == ["<user> d <assistant>"]
    assert prompts.columns["answer.value"].to_list() == ["dd"]
    assert json.loads(prompts.columns["answer"].to_list()[0]) == {"value": "dd", "unit": "µm"}


def test_a_rank_asks_for_the_bytes_of_its_own_rows_alone(tmp_path, tokenizer, s3):
    rows = [{"prompt": "a", "answer": "x" * 100_000 + str(i)} for i in range(8)]
    path = put_lines(s3, rows)
    open_s3(tmp_path, tokenizer, path)
    s3.asked.clear()
    # the survey is there: another rank of the attempt neither lists nor looks
    dataset = open_s3(tmp_path, tokenizer, path)
    assert s3.asked == []
    size = len(lines(rows[:1]))
    assert [answer[-1] for answer in answers(dataset, [2, 6])] == ["2", "6"]
    # the last byte is the end of the line, which is not asked for
    assert sorted(s3.asked) == [
        f"GET /data/one.jsonl bytes={2 * size}-{3 * size - 2}",
        f"GET /data/one.jsonl bytes={6 * size}-{7 * size - 2}",
    ]
    s3.asked.clear()
    answers(dataset, [3, 4])
    assert s3.asked == [f"GET /data/one.jsonl bytes={3 * size}-{5 * size - 2}"], "neighbours are one request"


def test_a_rank_asks_for_the_row_groups_of_its_own_rows_once(tmp_path, tokenizer, s3):
    path = put_groups(s3, numbered(10))
    open_s3(tmp_path, tokenizer, path)
    s3.asked.clear()
    dataset = open_s3(tmp_path, tokenizer, path)
    assert s3.asked == []
    assert answers(dataset, [1, 0]) == ["answer 1", "answer 0"]
    asked = [request.split()[1] for request in s3.asked]
    assert set(asked) == {"/data/q/0.parquet"}
    assert answers(dataset, [2, 0]) == ["answer 2", "answer 0"]
    assert len(s3.asked) == len(asked), "of the same row group"
    assert answers(dataset, [3]) == ["answer 3"]
    assert len(s3.asked) > len(asked)


def test_a_long_file_is_scanned_piece_by_piece(tmp_path, tokenizer, s3, monkeypatch):
    monkeypatch.setattr("rljob_worker.data.objects.lines.SCAN_BYTES", 100)
    monkeypatch.setattr("rljob_worker.data.objects.lines.BATCH_ROWS", 3)
    dataset = open_s3(tmp_path, tokenizer, put_lines(s3, numbered(20)))
    scanned = [request.rpartition("=")[2] for request in s3.asked if " bytes=" in request]
    assert scanned[:3] == ["0-99", "100-199", "200-299"]
    assert answers(dataset, np.arange(20)) == [f"answer {i}" for i in range(20)]


def test_large_row_groups_are_warned_of(tmp_path, tokenizer, s3, monkeypatch, caplog):
    monkeypatch.setattr(row_groups, "LARGE_GROUP_BYTES", 10)
    open_s3(tmp_path, tokenizer, put_groups(s3, numbered(5)))
    assert "s3://data/q/*.parquet: row groups have up to 0 MiB" in caplog.text and "row_group_size=1000" in caplog.text


@pytest.mark.parametrize("put", [put_lines, put_groups])
def test_any_number_of_ranks_reads_the_same_rows_at_the_same_step(tmp_path, tokenizer, s3, put):
    path, batch_size = put(s3, numbered(10)), 6

    def read(num_ranks, step, attempt):
        first = np.arange((step - 1) * batch_size, step * batch_size)
        ranks = [open_s3(tmp_path, tokenizer, path, attempt=attempt, seed=5) for _ in range(num_ranks)]
        return [
            answer for rank, item in enumerate(ranks) for answer in answers(item, share_of_rank(first, rank, num_ranks))
        ]

    alone = [read(1, step, "1") for step in range(1, 5)]
    # killed after step 2 and gone on with three ranks, then with four
    assert [*alone[:2], read(3, 3, "2"), read(4, 4, "3")] == alone
    assert sorted(sum(alone, [])[:10]) == [f"answer {i}" for i in range(10)]


# ---- a store that changes


def test_ranks_of_an_attempt_see_one_listing_and_the_next_attempt_its_own(tmp_path, tokenizer, s3):
    path = put_pattern(s3, numbered(5))
    first = open_s3(tmp_path, tokenizer, path)
    s3.put("data/p/2.jsonl", lines(numbered(3, start=5)))
    late = open_s3(tmp_path, tokenizer, path)
    assert (len(late), late.files) == (5, first.files)
    assert len(open_s3(tmp_path, tokenizer, path, attempt="2")) == 8


def test_a_new_file_is_named_when_the_next_epoch_begins(tmp_path, tokenizer, s3):
    dataset = open_s3(tmp_path, tokenizer, put_pattern(s3, numbered(5)), seed=1)
    s3.put("data/p/2.jsonl", lines(numbered(3)))
    s3.put("data/p/notes.txt", b"no rows")
    answers(dataset, np.arange(1, 5))
    with pytest.raises(BadData) as caught:
        answers(dataset, np.arange(4, 8))
    assert "no longer what this run began with: s3://data/p/2.jsonl is new; put the files back" in str(caught.value)
    answers(dataset, np.arange(6, 9))  # another rank's share of the same step: one of them looks


def test_an_epoch_of_a_store_that_stays_the_same_begins_in_silence(tmp_path, tokenizer, s3):
    dataset = open_s3(tmp_path, tokenizer, put_parts(s3, numbered(5)))
    assert answers(dataset, [4, 5, 6]) == ["answer 4", "answer 0", "answer 1"]


@pytest.mark.parametrize("put", [put_pattern, put_groups])
def test_a_file_that_was_replaced_is_named_by_whoever_reads_it(tmp_path, tokenizer, s3, put):
    path = put(s3, numbered(5))
    dataset = open_s3(tmp_path, tokenizer, path)
    dataset = open_s3(tmp_path, tokenizer, path)  # nothing is read yet
    put(s3, [{**row, "answer": "ANSWER"} for row in numbered(5)])
    with pytest.raises(BadData, match=r"s3://data/./0\.\w+ was replaced while the job read it"):
        answers(dataset, [0])


def test_a_file_that_is_gone_is_named(tmp_path, tokenizer, s3):
    dataset = open_s3(tmp_path, tokenizer, put_pattern(s3, numbered(5)))
    s3.delete("data/p/1.jsonl")
    with pytest.raises(BadData, match=r"s3://data/p/1.jsonl: not there \(404 Not Found \(NoSuchKey"):
        answers(dataset, [4])
    with pytest.raises(BadData, match=r"began with: s3://data/p/1.jsonl is gone; put the files back"):
        answers(dataset, [5])


# ---- a store that does not answer


class Outage:
    """Answers 503 to reads until the clock says otherwise."""

    def __init__(self, clock, until):
        self.clock, self.until = clock, until

    def __call__(self, request):
        return SLOW_DOWN if self.clock.now < self.until else None


@pytest.mark.parametrize("put", [put_pattern, put_groups])
def test_a_minute_of_503_at_the_start_costs_a_minute(tmp_path, tokenizer, s3, put, caplog):
    clock = Clock()
    path = put(s3, numbered(5))
    s3.fail = Outage(clock, until=60.0)
    assert answers(open_s3(tmp_path, tokenizer, path, clock=clock), [4]) == ["answer 4"]
    assert 60.0 <= clock.now < 80.0
    assert "503 Service Unavailable (SlowDown: Please reduce your request rate.); retrying" in caplog.text


def test_a_minute_of_503_while_it_trains_costs_a_minute(tmp_path, tokenizer, s3):
    clock = Clock()
    dataset = open_s3(tmp_path, tokenizer, put_lines(s3, numbered(5)), clock=clock)
    s3.fail = Outage(clock, until=60.0)
    assert answers(dataset, [4, 0]) == ["answer 4", "answer 0"]


@pytest.mark.parametrize("put", [put_lines, put_groups])
def test_a_store_that_answers_503_for_ever_ends_the_step_that_needs_it(tmp_path, tokenizer, s3, put):
    clock = Clock()
    path = put(s3, numbered(9))
    dataset = open_s3(tmp_path, tokenizer, path, clock=clock)
    dataset = open_s3(tmp_path, tokenizer, path, clock=clock)
    s3.fail = Outage(clock, until=float("inf"))
    dataset.read_ahead(np.array([4, 5]))  # in the background, where nobody hears of it
    with pytest.raises(DeadlineExceeded) as caught:
        dataset.fetch(np.array([4, 5]))
    assert "no success within 300 s of retries; its last words: 503 Service Unavailable (SlowDown" in str(caught.value)
    assert caught.value.exit_code == 75


def test_what_was_read_ahead_is_not_asked_for_again(tmp_path, tokenizer, s3):
    dataset = open_s3(tmp_path, tokenizer, put_lines(s3, numbered(5)))
    s3.asked.clear()
    dataset.read_ahead([1, 3])
    assert answers(dataset, [1, 3]) == ["answer 1", "answer 3"]
    assert len(s3.asked) == 1


def test_nobody_listens_at_the_endpoint(tmp_path, tokenizer, s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(DeadlineExceeded, match=r"s3://data/x.jsonl: no success within 300 s of retries.*HTTP error"):
        open_s3(tmp_path, tokenizer, "s3://data/x.jsonl")


# ---- what cannot be read at all


def refusal(tmp_path, tokenizer, path, kind=BadData, **values):
    with pytest.raises(kind) as caught:
        open_s3(tmp_path, tokenizer, path, **values)
    return str(caught.value)


@pytest.mark.parametrize("path", ["s3://data/one.jsonl", "s3://data/*.jsonl"])
def test_wrong_credentials(tmp_path, tokenizer, s3, path):
    put_lines(s3, numbered(3))
    s3.require_credentials()
    message = refusal(tmp_path, tokenizer, path, InvalidJob)
    assert "the store refuses: 403 Forbidden" in message and "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in message


def test_no_bucket_and_no_object(tmp_path, tokenizer, s3):
    put_lines(s3, numbered(3))
    for path in ("s3://date/*.jsonl", "s3://date/one.jsonl"):
        message = refusal(tmp_path, tokenizer, path, InvalidJob)
        assert "there is no such bucket (404 Not Found (NoSuchBucket" in message and "; make it, or correct" in message
    assert "nothing is at s3://data/two.jsonl" in refusal(tmp_path, tokenizer, "s3://data/two.jsonl")


def test_objects_that_are_no_data_set(tmp_path, tokenizer, s3):
    s3.put("data/notes/a.txt", b"a")
    assert "Parquet files or JSON-lines files; s3://data/notes holds a.txt" in refusal(
        tmp_path, tokenizer, "s3://data/notes"
    )
    s3.put("data/packed/a.jsonl.gz", b"a")
    assert "a.jsonl.gz, whose rows cannot be read one by one: store it uncompressed, or as Parquet" in refusal(
        tmp_path, tokenizer, "s3://data/packed"
    )
    assert "uncompressed" in refusal(tmp_path, tokenizer, "s3://data/packed/a.jsonl.gz", InvalidJob)
    s3.put("data/mixed/a.jsonl", b"{}")
    s3.put("data/mixed/a.parquet", b"{}")
    assert "holds JSON-lines and Parquet files" in refusal(tmp_path, tokenizer, "s3://data/mixed")
    s3.put("data/saved/state.json", b"{}")
    assert "what save_to_disk wrote" in refusal(tmp_path, tokenizer, "s3://data/saved")
    s3.put("data/empty.jsonl", b"")
    assert "s3://data/empty.jsonl is empty" in refusal(tmp_path, tokenizer, "s3://data/empty.jsonl")
    s3.put("data/blank.jsonl", b"\n \n")
    assert "s3://data/blank.jsonl has no rows" in refusal(tmp_path, tokenizer, "s3://data/blank.jsonl")


def test_rows_that_are_no_rows(tmp_path, tokenizer, s3, monkeypatch):
    s3.put("data/half.jsonl", lines(numbered(1)) + b'\n{"prompt": \n')
    assert "line 3 of s3://data/half.jsonl is not JSON" in refusal(tmp_path, tokenizer, "s3://data/half.jsonl")
    s3.put("data/list.jsonl", lines(numbered(1)) + b"[1]\n")
    assert "line 2 of s3://data/list.jsonl is a JSON list" in refusal(tmp_path, tokenizer, "s3://data/list.jsonl")
    s3.put("data/empty-prompt.jsonl", lines([*numbered(1), {"prompt": " ", "answer": "1"}]))
    assert "line 2 of s3://data/empty-prompt.jsonl: the prompt is empty" in refusal(
        tmp_path, tokenizer, "s3://data/empty-prompt.jsonl"
    )
    s3.put("data/no-answer.parquet", parquet([*numbered(3), {"prompt": "a", "answer": None}], 2))
    assert "row 4 of s3://data/no-answer.parquet: the column 'answer' has no value" in refusal(
        tmp_path, tokenizer, "s3://data/no-answer.parquet"
    )
    s3.put("data/broken.parquet", b"PAR1 and then nothing")
    assert "s3://data/broken.parquet cannot be read as Parquet" in refusal(
        tmp_path, tokenizer, "s3://data/broken.parquet"
    )
    for name, column in (("prompt", "answer"), ("answer", "prompt")):
        s3.put(f"data/half-{name}.jsonl", lines([{name: "\ud83d", column: "a"}]))
        message = refusal(tmp_path, tokenizer, f"s3://data/half-{name}.jsonl")
        assert f"line 1 of s3://data/half-{name}.jsonl is not JSON: " in message and "surrogates" in message
    s3.put("data/pair.jsonl", lines([{"prompt": "a", "answer": "\U0001f600"}]))
    assert answers(open_s3(tmp_path, tokenizer, "s3://data/pair.jsonl"), [0]) == ["\U0001f600"]
    monkeypatch.setattr("rljob_worker.data.objects.lines.MAX_LINE_BYTES", 20)
    s3.put("data/long.jsonl", b'{"prompt": "and it goes on')
    assert "line 1 of s3://data/long.jsonl is longer than" in refusal(tmp_path, tokenizer, "s3://data/long.jsonl")


@pytest.mark.parametrize("put", [put_lines, put_groups])
def test_a_column_that_is_missing(tmp_path, tokenizer, s3, put):
    message = refusal(tmp_path, tokenizer, put(s3, numbered(5)), columns=("anwser",))
    assert "has no column 'anwser'; did you mean 'answer'? it has prompt, answer" in message


def test_a_library_that_is_not_installed_is_named_with_its_extra(tmp_path, tokenizer, monkeypatch):
    find = builtins.__import__

    def without_obstore(name, *args, **kwargs):
        if name.split(".")[0] == "obstore":
            raise ImportError(f"No module named {name!r}")
        return find(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_obstore)
    message = refusal(tmp_path, tokenizer, "s3://data/one.jsonl", InvalidJob)
    assert "reading s3://data needs the package obstore: pip install 'rljob[objectstore]'" in message


# ---- a web server


def test_one_file_of_a_web_server(tmp_path, tokenizer, s3):
    s3.publish("data/one.jsonl", lines(numbered(5)))
    dataset = open_s3(tmp_path, tokenizer, f"{s3.url}/data/one.jsonl")
    assert answers(dataset, [4, 1]) == ["answer 4", "answer 1"]
    s3.publish("data/one.jsonl", lines(numbered(5, start=1)))
    with pytest.raises(BadData, match="was replaced"):
        answers(dataset, [0])
    put_lines(s3, numbered(5))
    message = refusal(tmp_path, tokenizer, f"{s3.url}/data/one.jsonl", InvalidJob, attempt="2")
    assert "403 Forbidden; what is read from the web must be open to everyone" in message
    s3.fail = lambda request: ("404 Not Found", b"")
    assert "there is no file at" in refusal(tmp_path, tokenizer, f"{s3.url}/data/two.jsonl")
