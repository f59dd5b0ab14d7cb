"""A whole tiny job under a Slurm of network namespaces, by the batch script of the examples."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from rljob_api.tests.patience import PATIENCE_SECONDS
from rljob_worker.hosts.tests import fake_srun
from rljob_worker.hosts.tests.launched import launching
from rljob_worker.tests.jobs import DISAGGREGATED, RLJOB, make_job
from rljob_worker.tests.namespaces import namespaces

EXAMPLE = Path(__file__).parents[3] / "examples" / "launch.sbatch"
ADDRESSES = "10.213.0.[2-4]"


@pytest.fixture(scope="module")
def machines():
    with namespaces(3) as places:
        yield places


def slurm(folder, machines):
    """The environment of a batch script."""
    fake_srun.install(folder / "bin")
    (folder / "bin" / "rljob").symlink_to(Path(RLJOB[0]).parent / "rljob")
    return {
        **os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": ADDRESSES, "FAKE_SLURM_NODES": ",".join(each.name for each in machines),
        "FAKE_SLURM_LOG": str(folder / "scontrol"), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    }  # fmt: skip


def test_the_batch_script_of_the_example_is_one():
    subprocess.run(["bash", "-n", EXAMPLE], check=True)
    options = re.findall(r"^#SBATCH --([\w-]+)", EXAMPLE.read_text(), re.MULTILINE)
    assert {"nodes", "ntasks-per-node", "signal", "requeue"} <= set(options)


def test_a_job_under_slurm_learns_what_it_learns_on_one_machine_and_goes_on_where_it_was_stopped(
    tiny, tmp_path, machines
):
    job = make_job(
        tiny, workerGroups=DISAGGREGATED, stop={"steps": 10_000}, checkpoint={"everySteps": 0},
        dataBuffer={"memory": "96Mi", "deadlineSeconds": int(PATIENCE_SECONDS), "tls": True},
    )  # fmt: skip
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    environment = slurm(tmp_path, machines)
    metrics = tmp_path / "runs" / "test" / "metrics.jsonl"
    with launching(tmp_path) as hosts:
        hosts.start(0, ["bash", str(EXAMPLE), "job.yaml"], environment)
        hosts.wait_for(lambda: len(steps_in(metrics)) > 1)
        hosts.processes[0].send_signal(signal.SIGTERM)
        assert hosts.codes() == {0: 76}, hosts.everything()
        assert (tmp_path / "scontrol").read_text() == "requeue 4711\n"
        done = steps_in(metrics)
        last = max(done)
        hosts.start(0, ["bash", str(EXAMPLE), "job.yaml", "--set", f"stop.steps={last + 1}"], environment)
        assert hosts.codes() == {0: 0}, hosts.everything()
    done = steps_in(metrics)
    assert sorted(done) == list(range(last + 2))

    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "job.yaml").write_text(yaml.safe_dump(job))
    command = [*RLJOB, "run", "job.yaml", "--set", f"stop.steps={last + 1}"]
    run = subprocess.run(
        command, cwd=alone, env=environment, capture_output=True, text=True, timeout=5 * PATIENCE_SECONDS
    )
    assert run.returncode == 0, run.stdout + run.stderr
    expected = steps_in(alone / "runs" / "test" / "metrics.jsonl")
    for name in ("reward/mean", "loss/policy", "response_length/mean"):
        assert [done[step].get(name) for step in sorted(done)] == [
            expected[step].get(name) for step in sorted(expected)
        ]
    assert any(record.get("loss/policy") for record in done.values())


def steps_in(metrics):
    """Records by step; none while the file is not there."""
    if not metrics.exists():
        return {}
    records = [json.loads(line) for line in metrics.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return {record["step"]: record for record in records}
