"""A job of a model, rows and functions."""

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

import rljob
from rljob_worker.cli.from_python.callbacks import CallbackView, RunCallbacks
from rljob_worker.cli.from_python.tables import write_table
from rljob_worker.data.objects.tests.hub_data_server import point_to, serving
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.rehearsal.inputs.first_rows import data_set_columns
from rljob_worker.rundir.directory import RunDirectory

ROWS = [{"prompt": f"What is {i} + 1?", "answer": str(i + 1), "level": i} for i in range(4)]


def equal(completions: list[str], answer: list[str]) -> list[float]:
    return [float(text == right) for text, right in zip(completions, answer, strict=True)]


def test_data_of_a_program_and_a_function_become_a_job_beside_its_files(tmp_path: Path) -> None:
    training = rljob.training(
        "nowhere/model", ROWS, equal, steps=7, name="sums", settings={"training.learningRate": 1e-6}
    )

    path = training.save(tmp_path)

    job = yaml.safe_load(path.read_text())
    assert job["metadata"]["name"] == "sums"
    assert job["spec"]["data"]["train"] == [{"path": "train.parquet"}]
    assert job["spec"]["data"]["promptColumn"] == "prompt"
    assert job["spec"]["rewards"] == [{"name": "equal", "run": f"{__name__}:equal", "columns": ["answer"]}]
    assert (job["spec"]["stop"], job["spec"]["training"]) == ({"steps": 7}, {"learningRate": 1e-6})
    assert pq.read_table(tmp_path / "train.parquet").to_pylist() == ROWS
    assert training.to_yaml() == path.read_text()


def test_a_path_is_named_as_it_is_and_a_reward_may_be_a_name_or_an_entry(tmp_path: Path) -> None:
    write_table(ROWS, tmp_path / "rows.parquet")
    rewards = [
        {"run": "rljob_worker.rewards:exact_match", "column": "answer", "weight": 0.5},
        {"run": equal, "name": "own"},
    ]

    job = yaml.safe_load(rljob.training("nowhere/model", "rows.parquet", rewards, folder=tmp_path).to_yaml())

    assert job["spec"]["data"]["train"] == [{"path": str(tmp_path / "rows.parquet")}]
    assert [reward["name"] for reward in job["spec"]["rewards"]] == ["exact_match", "own"]
    assert job["spec"]["rewards"][0]["weight"] == 0.5


def test_every_table_has_the_same_rows(tmp_path: Path) -> None:
    import datasets
    import pandas

    tables = [ROWS, pandas.DataFrame(ROWS), datasets.Dataset.from_list(ROWS * 2).select(range(4, 8))]
    for i, table in enumerate(tables):
        write_table(table, tmp_path / f"{i}.parquet")
    assert all(pq.read_table(tmp_path / f"{i}.parquet").to_pylist() == ROWS for i in range(3))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "have no rows"),
        (42, "data are a path, a list of mappings"),
        ([{"a": 1}, {"a": "text"}], "the data are no table"),
        ({"train": ROWS}, "not builtins.dict"),
    ],
)
def test_data_that_are_no_rows_are_refused(data: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(BadData, match=said):
        write_table(data, tmp_path / "rows.parquet")


def test_what_cannot_be_a_job_is_refused_before_anything_starts() -> None:
    with pytest.raises(BadData, match="prompt_column: no column of the data looks like prompts; .*there are: text"):
        rljob.training("nowhere/model", [{"text": "x"}], equal).to_yaml()
    with pytest.raises(BadData, match="prompt_column: the data have no column 'promt'; did you mean 'prompt'"):
        rljob.training("nowhere/model", ROWS, equal, prompt_column="promt").to_yaml()
    with pytest.raises(InvalidJob, match="two rewards are called equal"):
        rljob.training("nowhere/model", ROWS, [equal, equal]).to_yaml()
    with pytest.raises(rljob.InvalidJobError, match="PATH=VALUE"):
        rljob.training("nowhere/model", ROWS, equal, settings={"": 1}).to_yaml()
    with pytest.raises(InvalidJob, match="rows of this program, which pods cannot read"):
        rljob.submit("nowhere/model", ROWS, equal)


class FakeClient:
    """Keeps what is submitted."""

    def submit(self, path: Path, *, code: str | None) -> str:
        self.job = yaml.safe_load(path.read_text())
        self.modules = None if code is None else sorted(item.name for item in Path(code).glob("*.py"))
        return "the job"


def test_a_cluster_gets_the_modules_that_are_named_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def right(row):\n    return 1.0\n")
    write_table(ROWS, tmp_path / "rows.parquet")
    modules = []
    for run in ("mine:right", "rljob_worker.rewards:exact_match"):
        client = FakeClient()
        job = rljob.training("nowhere/model", "rows.parquet", run, folder=tmp_path).submit(client)  # type: ignore[arg-type]
        assert job == "the job" and client.job["spec"]["rewards"][0]["run"] == run  # type: ignore[comparison-overlap]
        modules.append(client.modules)
    assert modules == [["mine.py"], None]


def test_who_calls_from_python_hears_what_is_warned_of(tmp_path: Path) -> None:
    directory, heard = RunDirectory(tmp_path), list[str]()
    view = CallbackView(directory, RunCallbacks(on_message=heard.append))
    alike = {"reward/mean": 0.0, "reward/zero_variance_groups": 1.0}
    directory.metrics.write_text("".join(json.dumps({"step": step, **alike}) + "\n" for step in (1, 2, 3)))
    view.tick()
    (line,) = heard
    assert line.startswith("warning: step 3: in 100% of groups all answers have the same reward")


def test_completion_offers_what_there_is() -> None:
    assert {"train", "training", "submit", "InvalidJobError", "Client"} <= set(dir(rljob))
    assert all(getattr(rljob, name) is not None for name in dir(rljob))
    page = Path(__file__).parents[5] / "docs" / "python.md"
    named = set(re.findall(r"rljob\.(\w+)", page.read_text()))
    assert "RunFailed" in named and named <= set(dir(rljob)), "names that the page uses"


def test_help_and_completion_show_every_argument_and_so_does_the_page() -> None:
    def arguments(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
        parameters = inspect.signature(function).parameters
        assert all(each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL) for each in parameters.values())
        return {name: each for name, each in parameters.items() if name not in ("self", "client")}

    job = arguments(rljob.training)
    assert arguments(rljob.train) == job | arguments(rljob.Training.run) and arguments(rljob.submit) == job
    page = (Path(__file__).parents[5] / "docs" / "python.md").read_text()
    table = page.partition("| argument of `rljob.train` |")[2].partition("\n\n")[0]
    named = [name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(arguments(rljob.train))


def test_what_keeps_a_job_from_running_is_raised_under_the_name_of_the_docs(tmp_path: Path) -> None:
    write_table(ROWS, tmp_path / "rows.parquet")
    with pytest.raises(rljob.InvalidJobError, match="nowhere") as caught:
        rljob.train(str(tmp_path / "nowhere"), str(tmp_path / "rows.parquet"), equal, runs_dir=tmp_path / "runs")
    assert type(caught.value) is rljob.InvalidJobError


def test_data_of_the_hub_by_name_become_a_job_with_its_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "hf://datasets/maths/sums"
    with serving() as hub:
        point_to(hub.endpoint, str(tmp_path / "hub"), monkeypatch)
        hub.files = {"maths/sums/train.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS).encode()}
        training = rljob.training("nowhere/model", path, equal, steps=1, name="sums", folder=tmp_path)
        spec = yaml.safe_load(training.to_yaml())["spec"]
        assert data_set_columns(path) == ["prompt", "answer", "level"]

    assert spec["data"]["train"] == [{"path": path}] and spec["data"]["promptColumn"] == "prompt"
    assert spec["rewards"][0]["columns"] == ["answer"]
