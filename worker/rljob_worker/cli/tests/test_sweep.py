"""`rljob sweep`: which runs there are, and that they come one after the other with fake pods."""

import json

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.cli.sweep import NAME_LENGTH, base_name, sweep_runs, values_of
from rljob_worker.cli.tests.test_commands import FAKE, TRAINS, write_job
from rljob_worker.errors import InvalidJob
from rljob_worker.tests.warm import run_warm

RATES = "training.learningRate=1e-6,3e-6"


def runs_of(path, overrides):
    return sweep_runs(base_name(path, overrides), overrides)


def sweep(folder, script, *options):
    return run_warm(
        FAKE, json.dumps(script), "sweep", "job.yaml", *options, folder=folder, timeout=TEST_TIMEOUT_SECONDS
    )


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("a=1,2", ["1", "2"]),
        ("a=1", ["1"]),
        ("a= x , y ", ["x", "y"]),
        ("a='x,y',z", ["'x,y'", "z"]),
        ("a=[1, 2],[3]", ["[1, 2]", "[3]"]),
        ("a={b: 1},{b: 2}", ["{b: 1}", "{b: 2}"]),
        ("a=[1", ["[1"]),
        ("a=", [""]),
    ],
)
def test_values_are_as_they_are_written(override, values):
    assert values_of(override) == ("a", values)


def test_all_combinations_are_run_and_named_by_their_values(tmp_path):
    write_job(tmp_path)
    runs = runs_of(tmp_path / "job.yaml", [RATES, "stop.steps=10", "seed=1,2"])
    assert [run.name for run in runs] == ["tiny-1e-6-1", "tiny-1e-6-2", "tiny-3e-6-1", "tiny-3e-6-2"]
    assert runs[2].overrides == (
        "training.learningRate=3e-6", "stop.steps=10", "seed=1", "metadata.name=tiny-3e-6-1",
    )  # fmt: skip
    assert runs[2].chosen == ("training.learningRate=3e-6", "seed=1")


@pytest.mark.parametrize("values", ["-1,1", f"{'a' * 40},b", "'+',b"])
def test_values_that_make_no_names_are_numbered(tmp_path, values):
    write_job(tmp_path)
    runs = runs_of(tmp_path / "job.yaml", [f"seed={values}", f"metadata.name={'n' * NAME_LENGTH}"])
    assert [run.name for run in runs] == [f"{'n' * 38}-1", f"{'n' * 38}-2"]
    assert [run.name for run in runs_of(tmp_path / "job.yaml", [f"seed={values}"])] == ["tiny-1", "tiny-2"]


def test_a_sweep_without_values_and_one_over_names_are_refused(tmp_path):
    write_job(tmp_path)
    with pytest.raises(InvalidJob, match="several values"):
        runs_of(tmp_path / "job.yaml", ["seed=1"])
    with pytest.raises(InvalidJob, match=r"metadata\.name one value"):
        runs_of(tmp_path / "job.yaml", ["metadata.name=a,b"])


def test_runs_follow_each_other_and_are_compared(tmp_path):
    write_job(tmp_path)
    done = sweep(tmp_path, TRAINS, "--set", RATES)
    assert done.returncode == 0, done.stderr
    assert "run 1 of 2, tiny-1e-6: training.learningRate=1e-6" in done.stdout
    assert "run 2 of 2, tiny-3e-6: training.learningRate=3e-6" in done.stdout
    table = done.stdout[done.stdout.index("NAME  ") :].splitlines()
    assert [line.split() for line in table[:3]] == [
        ["NAME", "training.learningRate", "PHASE", "reward/mean"],
        ["tiny-1e-6", "1e-06", "Succeeded", "0.25"],
        ["tiny-3e-6", "3e-06", "Succeeded", "0.25"],
    ]
    page = (tmp_path / "runs" / "tiny-sweep.html").read_text()
    assert "tiny-1e-6, tiny-3e-6" in page
    again = sweep(tmp_path, TRAINS, "--set", RATES)
    assert again.returncode == 0 and again.stdout.count("finished") == 2, "what has ended is not run again"


@pytest.mark.slow
def test_a_run_that_fails_does_not_end_the_sweep(tmp_path):
    write_job(tmp_path)
    done = sweep(tmp_path, {"*": [["exit", 65]]}, "--set", RATES)
    assert done.returncode == 65
    assert "tiny-3e-6" in done.stdout and done.stdout.count("Failed") == 2


def test_every_job_is_checked_before_the_first_starts(tmp_path):
    write_job(tmp_path)
    done = sweep(tmp_path, TRAINS, "--set", "training.learningRat=1e-6,3e-6")
    assert done.returncode == 64 and "training.learningRat" in done.stderr and "learningRate" in done.stderr
    done = sweep(tmp_path, TRAINS, "--set", "stop.steps=10,none")
    assert done.returncode == 64 and "stop.steps" in done.stderr
    assert not (tmp_path / "runs").exists()
