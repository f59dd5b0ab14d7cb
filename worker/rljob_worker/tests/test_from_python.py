"""Jobs from Python: checked, planned and run as those of files are."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rljob
from rljob_api.tests.builders import SMALL
from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_api.v1alpha1 import AlgorithmSpec, DatasetSpec, DataSpec, ModelSpec, RewardSpec, RolloutSpec, StopSpec
from rljob_api.vocabulary.problem import InvalidJobError

NOTEBOOK = Path(__file__).parents[3] / "examples" / "notebook.ipynb"


def small_job(**algorithm):
    spec = rljob.RLJobSpec(
        models=(ModelSpec(name="actor", path="model"),),
        data=DataSpec(
            train=(DatasetSpec(path="train.parquet"),), prompt_column="question", batch_size=8, max_prompt_tokens=64
        ),
        rewards=(RewardSpec(name="correct", run="rljob_worker.rewards:final_number", column="answer"),),
        algorithm=AlgorithmSpec(name="GRPO", **algorithm),
        rollout=RolloutSpec(max_response_tokens=64),
        stop=StopSpec(steps=1),
    )
    return rljob.make_job("small", spec)


def test_a_job_of_types_has_the_problems_that_it_would_have_as_a_file(tmp_path):
    problems = rljob.validate(small_job(group_size=1), folder=tmp_path)
    assert {problem.line for problem in problems} == {None}
    paths = [problem.path for problem in problems]
    assert "spec.data.train[0].path" in paths, "there is no such file"
    assert any(path.startswith("spec.algorithm") for path in paths), "a group of one teaches nothing"


def test_a_mapping_and_a_file_are_jobs_too(tmp_path, tiny):
    job = small_job(group_size=4)
    as_mapping = job.model_dump(mode="json", by_alias=True, exclude_unset=True)
    folder = tmp_path / "small"
    shutil.copytree(tiny, folder)
    (folder / "small.json.yaml").write_text(json.dumps(as_mapping))
    plans = [rljob.plan(item, folder=folder).hash() for item in (job, as_mapping)]
    assert plans == [rljob.plan(folder / "small.json.yaml").hash()] * 2
    assert rljob.validate(job, folder=folder) == []


def test_what_is_wrong_is_raised_before_anything_starts(tmp_path):
    for act in (rljob.plan, rljob.run):
        with pytest.raises(InvalidJobError, match="groupSize"):
            act(small_job(group_size=1), folder=tmp_path)
    assert not (tmp_path / "runs").exists()


def test_importing_is_light():
    heavy = "('torch', 'numpy', 'click', 'kubernetes')"
    code = f"import rljob, sys; rljob.Pipeline; rljob.RLJob; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        rljob.Nothing  # noqa: B018


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, tiny, monkeypatch):
    """Every cell in a kernel of its own, with a function of the notebook, and with a whole run of three steps."""
    import nbformat
    from nbclient import NotebookClient

    shutil.copytree(tiny, tmp_path / "arithmetic")
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(
        notebook, timeout=7 * TEST_TIMEOUT_SECONDS, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = ["".join(str(output.get("text", output.get("data", {}).get("text/plain", ""))) for output in cell.outputs)
               for cell in notebook.cells if cell.cell_type == "code"]  # fmt: skip
    tables = [
        output for cell in notebook.cells for output in cell.get("outputs", ()) if "text/html" in output.get("data", {})
    ]
    assert "step 2/2" in tables[0]["data"]["text/html"] and "Succeeded" in tables[0]["data"]["text/plain"]
    trained, problems, stages, progress, _, end = outputs
    # a table with a line for each of two steps, below its names and "step"
    assert "reward/mean" in trained and [line.split()[0] for line in trained.splitlines()[-2:]] == ["1", "2"]
    assert problems == "[]"
    assert stages == "['rollout', 'reference', 'reward', 'advantage', 'update']"
    words = progress.split("\n")
    assert words[0] == "Starting" and {"Running", "Succeeded"} <= set(words)
    assert [line.partition(":")[0] for line in words if line.startswith("step")] == ["step 1", "step 2", "step 3"]
    assert end == "('Succeeded', [1, 2, 3], True)"


def test_the_small_job_of_other_tests_is_one_for_python(tmp_path):
    (tmp_path / "job.yaml").write_text(SMALL)
    assert all(problem.path for problem in rljob.validate(tmp_path / "job.yaml"))
