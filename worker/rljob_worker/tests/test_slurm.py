"""A whole tiny job under a Slurm of network namespaces, by the batch script of the examples."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.supervision.tests import fake_srun
from rljob_worker.supervision.tests.launched import launching
from rljob_worker.tests.baselines import write_files
from rljob_worker.tests.comparable import FILES, PRECISION, comparable_job
from rljob_worker.tests.fault_injection import ask_for, held
from rljob_worker.tests.jobs import CPU, RLJOB, Run
from rljob_worker.tests.metrics import assert_learnt_the_same
from rljob_worker.tests.namespaces import namespaces

EXAMPLE = Path(__file__).parents[3] / "examples" / "launch.sbatch"
ADDRESSES = "10.213.0.[2-3]"
APART = [{"name": "rollout", "accelerator": CPU}, {"name": "train", "accelerator": CPU}]


@pytest.fixture(scope="module")
def machines():
    with namespaces(2) as places:
        yield places


def slurm(folder, machines):
    """The environment of a batch script."""
    fake_srun.install(folder / "bin")
    (folder / "bin" / "rljob").symlink_to(Path(RLJOB[0]).parent / "rljob")
    return {
        **os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": ADDRESSES, "FAKE_SLURM_NODES": ",".join(machine.name for machine in machines),
        "FAKE_SLURM_LOG": str(folder / "scontrol"), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    }  # fmt: skip


def test_the_batch_script_of_the_example_is_one():
    subprocess.run(["bash", "-n", EXAMPLE], check=True)
    options = re.findall(r"^#SBATCH --([\w-]+)", EXAMPLE.read_text(), re.MULTILINE)
    assert {"nodes", "ntasks-per-node", "signal", "requeue"} <= set(options)


@pytest.mark.slow
def test_a_job_under_slurm_learns_what_one_worker_does_and_goes_on_where_it_was_stopped(
    tiny, tmp_path, machines, one_worker
):
    tls = {"memory": "96Mi", "deadlineSeconds": int(TEST_TIMEOUT_SECONDS), "tls": True}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(comparable_job(tiny, APART, 10_000, dataBuffer=tls)))
    write_files(tmp_path, FILES)
    ask_for(tmp_path, steps={2: "hold"})
    environment = slurm(tmp_path, machines)
    run = Run(0, "", tmp_path / "runs" / "test")
    with launching(tmp_path) as hosts:
        hosts.start(0, ["bash", str(EXAMPLE), "job.yaml"], environment)
        hosts.wait_for(held(tmp_path, 2).exists)
        hosts.processes[0].send_signal(signal.SIGTERM)
        hosts.wait_for(lambda: "stopping after this step" in hosts.said(0))
        ask_for(tmp_path)
        assert hosts.codes() == {0: 76}, hosts.everything()
        assert (tmp_path / "scontrol").read_text() == "requeue 4711\n"
        last = run.metrics[-1]["step"]
        assert last in (2, 3), "it stops after this step or the next"
        hosts.start(0, ["bash", str(EXAMPLE), "job.yaml", "--set", f"stop.steps={last + 1}"], environment)
        assert hosts.codes() == {0: 0}, hosts.everything()
    assert run.metrics[-1]["step"] == last + 1
    assert_learnt_the_same(run, one_worker, PRECISION)
