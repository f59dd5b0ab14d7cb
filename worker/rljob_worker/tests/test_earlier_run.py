"""A run whose files were written in the layout of commit 52459002 goes on: fields, checkpoint, metrics, samples.

`earlier_run.tar.xz` has a job of GRPO with a model of 4,176 parameters, its data, and the run of its first two steps.
"""

import json
import tarfile
from pathlib import Path

import pytest
import yaml

from rljob_worker.checkpoint.manifest import committed
from rljob_worker.tests.jobs import run_job

EARLIER = Path(__file__).with_name("earlier_run.tar.xz")


@pytest.mark.slow
def test_a_run_of_the_earlier_layout_goes_on(tmp_path):
    with tarfile.open(EARLIER) as archive:
        archive.extractall(tmp_path, filter="data")
    job = yaml.safe_load((tmp_path / "job.yaml").read_text())
    job["spec"]["stop"]["steps"] = 3

    run = run_job(job, tmp_path)

    assert run.code == 0, run.output + run.logs
    assert "going on from the checkpoint of step 2" in run.output
    assert [step["step"] for step in run.metrics] == [1, 2, 3]
    assert [result.step for result in committed(run.directory / "checkpoints")] == [2, 3]
    last = run.metrics[-1]
    # the rows of step 3 are drawn with policy version 2: counted from 0 they would be two versions old
    assert last["staleness/max"] == 0
    # a controller that goes on: 4 rows with less than the target divergence, 0.00984064 x (1 - 0.2 x 4 / 100)
    assert last["kl/coefficient"] == pytest.approx(0.00984064 * 0.992, rel=1e-9)
    samples = [json.loads(line) for line in (run.directory / "samples.jsonl").read_text().splitlines()]
    assert min(sample["row"] for sample in samples if sample["step"] == 3) > 8, "after the 8 rows of two steps"
