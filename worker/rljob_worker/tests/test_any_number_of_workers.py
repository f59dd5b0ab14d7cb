"""One job on one worker and on more, colocated and disaggregated, whole and gone on with: what it learns is the same.

`test_matrix` runs jobs with pipelines that algorithms bring along; this one has more stages and one of its user's.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.tests.baselines import write_files
from rljob_worker.tests.comparable import FILES, PRECISION, comparable_job, on_workers
from rljob_worker.tests.jobs import DISAGGREGATED, run_job
from rljob_worker.tests.metrics import assert_learnt_the_same

NO_PICKLE = Path(__file__).with_name("no_pickle")
ENCRYPTED = {"memory": "96Mi", "deadlineSeconds": int(TEST_TIMEOUT_SECONDS), "tls": True}
ASK_EVERY_WAY = """
import io, pickle
for ask in (pickle.dumps, pickle.loads, lambda it: pickle.Pickler(io.BytesIO()), lambda it: pickle.Unpickler(it)):
    try:
        ask(b"")
    except BaseException as error:
        print(type(error).__name__)
"""


def run_on(tiny, folder, groups, num_steps, environment=None, **spec):
    """From where the job stands until it has done so many steps."""
    write_files(folder, FILES)
    run = run_job(
        comparable_job(tiny, groups, num_steps, **spec),
        folder,
        timeout_seconds=8 * TEST_TIMEOUT_SECONDS,
        **environment or {},
    )
    assert run.code == 0, run.output + run.logs
    return run


def steps_in(folder):
    """By rank, in the order in which they were run."""
    return [list(map(int, path.read_text().split())) for path in sorted(folder.glob("steps-*"))]


@pytest.mark.slow
def test_four_workers_learn_what_one_does(tiny, tmp_path, one_worker):
    assert_learnt_the_same(run_on(tiny, tmp_path, on_workers(4), 2), one_worker, PRECISION)


@pytest.mark.slow
def test_a_run_that_goes_on_begins_with_the_step_after_its_checkpoint(tiny, tmp_path, one_worker):
    run_on(tiny, tmp_path, on_workers(2), 1)
    assert_learnt_the_same(run_on(tiny, tmp_path, on_workers(2), 2), one_worker, PRECISION)
    assert steps_in(tmp_path) == [[1, 2], [1, 2]]


@pytest.mark.slow
def test_pods_that_generate_and_train_apart_learn_over_tls_what_one_worker_does(tiny, tmp_path, one_worker):
    apart = run_on(tiny, tmp_path, DISAGGREGATED, 2, dataBuffer=ENCRYPTED)
    assert [step["step"] for step in apart.metrics] == [0, 1, 2]
    assert steps_in(tmp_path) == [[1, 2], [1, 2]]
    assert_learnt_the_same(apart, one_worker, PRECISION)
    assert one_worker.metrics[2]["kl/old"] > 0


def guard(folder):
    """The environment of processes that cannot pickle. A fork would have imported torch before it is guarded."""
    pickles = folder / "pickles"
    pickles.mkdir()
    path = os.pathsep.join(filter(None, (str(NO_PICKLE), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "RLJOB_TEST_PICKLES": str(pickles), "RLJOB_FORK_WORKERS": "off"}


@pytest.mark.slow
def test_no_process_pickles_anything_but_files(tiny, tmp_path):
    guarded = guard(tmp_path)
    run_on(tiny, tmp_path, DISAGGREGATED, 2, guarded)
    result = {path.name for path in (tmp_path / "pickles").iterdir()}
    # a launcher is a fork of a root, which the variable leaves alone
    processes = {f"rljob_worker.{name}" for name in ("cli", "databuffer", "runtime", "rewards.running.process")}
    assert processes <= result
    asked = subprocess.run([sys.executable, "-c", ASK_EVERY_WAY], env=os.environ | guarded, capture_output=True)
    assert asked.stdout.split() == [b"PickleRefused"] * 4, asked.stderr
