"""One job on one worker and on more, colocated and disaggregated, whole and gone on with: what it learns is the same.

Disaggregated, its processes run where nothing can be pickled but to a file. `test_matrix` runs jobs with pipelines that
algorithms bring along; this one has more stages and one of its user's.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rljob_api.tests.patience import PATIENCE_SECONDS
from rljob_worker.tests.jobs import DISAGGREGATED, Run, make_job, run_job
from rljob_worker.tests.metrics import assert_learnt_the_same

NO_PICKLE = Path(__file__).with_name("no_pickle")
PRECISION = 1e-9
"""Relative. Ranks and micro-batches add the same numbers in another order. In float64 that changes the 16th digit, and
after two steps of training the 14th; in float32, where it changes the 7th, a loss near 0 agrees in five."""
STEPS = '''
from pathlib import Path

def note(batch, context):
    """Writes down the steps that a rank goes through."""
    with Path(__file__).with_name(f"steps-{context.dp_rank}").open("a") as file:
        file.write(f"{context.step}\\n")
    return {"noted": [0.0] * len(batch)}
'''
ASK_EVERY_WAY = """
import io, pickle
for ask in (pickle.dumps, pickle.loads, lambda it: pickle.Pickler(io.BytesIO()), lambda it: pickle.Unpickler(it)):
    try:
        ask(b"")
    except BaseException as error:
        print(type(error).__name__)
"""


@dataclass(frozen=True)
class Place:
    """The folder of one job."""

    folder: Path
    groups: list[dict[str, Any]]

    def run(self, tiny: Path, num_steps: int, **environment: str) -> Run:
        """From where the job stands until it has done so many steps."""
        (self.folder / "steps.py").write_text(STEPS)
        run = run_job(job_on(tiny, self, num_steps), self.folder, timeout_seconds=8 * PATIENCE_SECONDS, **environment)
        assert run.code == 0, run.output + run.logs
        return run

    @property
    def guard(self) -> dict[str, str]:
        """The environment of processes that cannot pickle. A fork would have imported torch before it is guarded."""
        pickles = self.folder / "pickles"
        pickles.mkdir(exist_ok=True)
        path = os.pathsep.join(filter(None, (str(NO_PICKLE), os.environ.get("PYTHONPATH"))))
        return {"PYTHONPATH": path, "RLJOB_TEST_PICKLES": str(pickles), "RLJOB_FORK_WORKERS": "off"}

    @property
    def steps(self) -> list[list[int]]:
        """By rank, in the order in which they were run."""
        return [list(map(int, path.read_text().split())) for path in sorted(self.folder.glob("steps-*"))]


def on_workers(count):
    return [{"name": "train", "accelerator": {"profile": "cpu", "count": count}}]


PLACES = {"one": on_workers(1), "two": on_workers(2), "four": on_workers(4), "disaggregated": DISAGGREGATED}


def job_on(tiny, place, num_steps):
    generates, trains = place.groups[0]["name"], place.groups[-1]["name"]
    note = {"run": "steps:note", "after": ["rollout"], "reads": ["response_ids"], "writes": ["noted"]}
    update = {"run": "UpdatePolicy", "models": ["actor"], "after": ["advantage"], "balance": "Tokens"}
    stages = [
        {"name": "rollout", "run": "Rollout", "models": ["actor"], "group": generates},
        {"name": "reward", "run": "Reward", "after": ["rollout"], "group": generates},
        {"name": "note", **note, "group": trains},
        {"name": "reference", "run": "LogProbs", "models": ["reference"], "after": ["rollout"], "group": trains},
        {"name": "old", "run": "LogProbs", "models": ["actor"], "after": ["rollout"], "group": trains},
        {"name": "advantage", "run": "Advantage", "after": ["reward", "reference", "old", "note"], "group": trains},
        {"name": "update", **update, "group": trains},
    ]
    # 16 rows of about 30 tokens are two optimizer steps: two micro-batches each on one worker, one each on four
    training = {"learningRate": 1.0e-3, "precision": "Float64", "tokensPerMicroBatch": 128, "miniBatchRows": 8}
    return make_job(
        tiny,
        workerGroups=place.groups,
        dag={"stages": stages},
        training=training,
        algorithm={"name": "GRPO", "groupSize": 4, "kl": {"coefficient": 0.01}},
        validation={"maxRows": 8, "everySteps": 1},  # also where a run is stopped
        checkpoint={"everySteps": 1},
        stop={"steps": num_steps},
    )


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    return {how: Place(tmp_path_factory.mktemp(how), place) for how, place in PLACES.items()}


@pytest.fixture(scope="module")
def run_on(tiny, places):
    """Two steps, run once by whoever asks first; two workers stop after step 1 and go on."""

    @cache
    def run(how: str) -> Run:
        if how == "two":
            places[how].run(tiny, 1)
        return places[how].run(tiny, 2, **places[how].guard if how == "disaggregated" else {})

    return run


@pytest.mark.parametrize("how", ["two", "four", "disaggregated"])
def test_a_job_learns_the_same_as_on_one_worker(run_on, how):
    one, other = run_on("one"), run_on(how)
    assert [step["step"] for step in other.metrics] == [0, 1, 2]
    assert_learnt_the_same(other, one, PRECISION)
    assert one.metrics[2]["kl/old"] > 0


def test_a_run_that_goes_on_begins_with_the_step_after_its_checkpoint(run_on, places):
    run_on("two")
    assert places["two"].steps == [[1, 2], [1, 2]]


def test_no_process_pickles_anything_but_files(run_on, places):
    run_on("disaggregated")
    place = places["disaggregated"]
    guarded = {path.name for path in (place.folder / "pickles").iterdir()}
    processes = {
        f"rljob_worker.{name}" for name in ("cli", "databuffer", "launcher", "runtime", "rewards.running.process")
    }
    assert processes <= guarded
    asked = subprocess.run([sys.executable, "-c", ASK_EVERY_WAY], env=os.environ | place.guard, capture_output=True)
    assert asked.stdout.split() == [b"PickleRefused"] * 4, asked.stderr
