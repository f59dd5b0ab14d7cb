"""Data sets of the Hub by name: a stand-in of it lists them and gives ranges of their files."""

import io
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rljob_worker
from rljob_api.loading.load import parse_job
from rljob_worker.data.dataset import PromptDataset
from rljob_worker.data.objects.tests.clock import Clock, patience
from rljob_worker.data.objects.tests.hub_data_server import COMMIT, point_to, serving
from rljob_worker.data.source import DataAccess
from rljob_worker.data.store_retry import StoreRetryPolicy
from rljob_worker.data.tests.test_dataset import Data, File, numbered
from rljob_worker.data.tests.tokenizers_for_tests import words_tokenizer
from rljob_worker.errors import BadData, DeadlineExceeded, InvalidJob, NotHere

EXAMPLES = Path(rljob_worker.__file__).parents[2] / "examples"
NAME = "maths/sums"
PATH = f"hf://datasets/{NAME}"
ANSWERS = [f"answer {i}" for i in range(6)]


def parquet(rows):
    into = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), into, row_group_size=2)
    return into.getvalue()


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with serving() as running:
        point_to(running.endpoint, str(tmp_path / "hub"), monkeypatch)
        rows = numbered(6)
        running.files = {
            f"{NAME}/main/train-0.parquet": parquet(rows[:4]),
            f"{NAME}/main/train-1.parquet": parquet(rows[4:]),
            f"{NAME}/main/test-0.parquet": parquet(rows[:1]),
            f"{NAME}/README.md": b"---\n---\n",
        }
        yield running


def opened(tmp_path, path=PATH, *, attempt="1", clock=None, **fields):
    return PromptDataset(
        Data(shuffle=False, prompt_column="question" if "gsm8k" in path else "prompt"),
        sources=[File(path, **fields)],
        columns=("answer",),
        tokenizer=words_tokenizer(),
        access=DataAccess(tmp_path / "cache", attempt, patience(clock or Clock())),
    )


def answers(dataset, count=6):
    prompts = dataset.fetch(np.arange(count))
    assert set(map(str, prompts.source.to_list())) == {"sums"}
    return prompts.columns["answer"].to_list()


def test_rows_of_a_split_are_read_by_range_at_one_commit(hub, tmp_path):
    assert answers(opened(tmp_path)) == ANSWERS
    assert len(opened(tmp_path, split="test")) == 1
    listed, *reads = (path for path in hub.asked if path.partition("/api/")[2] != "agent-harnesses")
    assert listed == f"/api/datasets/{NAME}"
    files = [path for path in reads if path.startswith("/datasets/")]
    assert files and all(f"/resolve/{COMMIT}/main/t" in path and " bytes=" in path for path in files)


def test_ranks_of_an_attempt_list_once_and_an_epoch_asks_for_no_listing(hub, tmp_path):
    for _ in range(2):
        dataset = opened(tmp_path)
        dataset.fetch(np.arange(6, 9))
    assert sum(path.startswith("/api/datasets/") for path in hub.asked) == 1


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (f"{PATH}@v1", {}),
        (f"{PATH}/main/train-*.parquet", {}),
        (PATH, {"subset": "main", "split": "train"}),
    ],
)
def test_a_revision_a_pattern_and_a_subset_name_the_same_rows(hub, tmp_path, path, fields):
    assert answers(opened(tmp_path, path, **{"name": "sums", **fields})) == ANSWERS
    assert any("/revision/v1" in asked for asked in hub.asked) == ("@v1" in path)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"split": "tset"}, "the data set maths/sums has no split 'tset'; did you mean 'test'"),
        ({"subset": "mian"}, "has no subset 'mian'; did you mean 'main'"),
    ],
)
def test_what_a_data_set_does_not_have_is_named_with_what_it_has(hub, tmp_path, fields, words):
    with pytest.raises(BadData, match=words):
        opened(tmp_path, **fields)
    with pytest.raises(InvalidJob, match="has no revision 'v9'"):
        opened(tmp_path, f"{PATH}@v9")
    with pytest.raises(NotHere, match="the Hub shows no data set maths/gone without an HF_TOKEN"):
        opened(tmp_path, "hf://datasets/maths/gone")


@pytest.mark.parametrize("example", ["gsm8k-qwen3", "tools-qwen3"])
def test_the_data_that_shipped_examples_name_is_found(hub, tmp_path, example):
    rows = [{"question": "How many?", "answer": "#### 3"}]
    files = {"main/train-00000-of-00001.parquet": rows * 3, "main/test-00000-of-00001.parquet": rows}
    hub.files = {f"openai/gsm8k/{name}": parquet(content) for name, content in files.items()}
    data = parse_job((EXAMPLES / f"{example}.yaml").read_text()).spec.data
    for sources, count in ((data.train, 3), (data.validation, 1)):
        (source,) = sources
        dataset = opened(tmp_path, source.path, subset=source.subset, split=source.split, attempt=str(count))
        assert len(dataset) == count
        assert dataset.fetch([0]).source.to_list() == ["gsm8k"]


def test_other_formats_are_refused_with_their_parquet_copy(hub, tmp_path):
    hub.files = {f"{NAME}/train.csv": b"a,b\n"}
    with pytest.raises(BadData, match=r"holds train.csv; the Hub makes Parquet .*sums@refs%2Fconvert%2Fparquet/SUBSET"):
        opened(tmp_path)


def test_a_token_opens_what_is_private(hub, tmp_path, monkeypatch):
    hub.token = "hf_secret"
    with pytest.raises(NotHere, match="set HF_TOKEN"):
        opened(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(InvalidJob, match="correct the name, or HF_TOKEN and HF_ENDPOINT"):
        opened(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert answers(opened(tmp_path)) == ANSWERS


def test_a_gated_data_set_is_named(hub, tmp_path):
    hub.gated = {NAME}
    with pytest.raises(NotHere, match="shows the data set maths/sums only to those that its owner admits"):
        opened(tmp_path)


def test_a_busy_hub_is_asked_again_and_one_that_stays_busy_is_named(hub, tmp_path):
    hub.answers = [429, 200, 503]
    assert answers(opened(tmp_path)) == ANSWERS
    hub.answers = [429] * 1000
    with pytest.raises(
        DeadlineExceeded, match="the data set maths/sums of the Hub: no success within .*last words: it answered 429"
    ):
        opened(tmp_path, attempt="2")


@pytest.mark.slow
def test_a_hub_that_says_nothing_is_named_in_the_end(hub, tmp_path):
    hub.answers = [0] * 9
    access = DataAccess(tmp_path / "cache", "1", StoreRetryPolicy(total_seconds=0.1))
    with pytest.raises(DeadlineExceeded, match="the data set maths/sums of the Hub: no success within 0.1 s"):
        PromptDataset(Data(shuffle=False), sources=[File(PATH)], columns=(), tokenizer=words_tokenizer(), access=access)


def test_a_server_that_sends_whole_files_is_refused_before_their_bytes(hub, tmp_path):
    hub.has_ranges = False
    with pytest.raises(InvalidJob, match="data set maths/sums ignores ranges.*hf download --repo-type dataset"):
        opened(tmp_path).fetch(np.arange(6))


def test_what_was_downloaded_is_read_without_the_hub(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(NotHere, match="hf download --repo-type dataset maths/sums"):
        opened(tmp_path)
    folder = tmp_path / "hub" / "datasets--maths--sums"
    for path, content in hub.files.items():
        file = folder / "snapshots" / COMMIT / path.removeprefix(f"{NAME}/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    asked = len(hub.asked)
    assert answers(opened(tmp_path)) == ANSWERS
    assert len(hub.asked) == asked
