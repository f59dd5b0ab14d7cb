"""A run as a person sees it: interrupted, gone on with on more workers, exported, built upon."""

import json
import signal
import subprocess
import sys

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from transformers import AutoModelForCausalLM

from rljob_worker.checkpoint.manifest import committed
from rljob_worker.tests.fault_injection import ask_for, held
from rljob_worker.tests.jobs import run_job, troubled_job
from rljob_worker.tests.live_run import live_run

MAX_PROCESSES = 8
MAX_THREADS = 60
TWO_WORKERS = [{"name": "train", "accelerator": {"profile": "cpu", "count": 2}}]


def rljob(folder, *arguments):
    command = [sys.executable, "-m", "rljob_worker.cli", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def status_of(folder):
    return json.loads(rljob(folder, "status", "test", "--json").stdout)


def steps_of(run):
    return [line["step"] for line in run.metrics]


def saved_state(run, folder):
    """What the newest checkpoint holds of the policy: model and optimizer."""
    checkpoint = committed(run.directory / "checkpoints")[-1]
    dcp_to_torch_save(checkpoint.path / "engines" / "train-actor", folder / "state.pt")
    return torch.load(folder / "state.pt", weights_only=True)


def assert_same_weights(one, other):
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-20)


def assert_is_small(live):
    """What a run with two workers consists of: the supervisor, the root, a launcher, a data buffer, and of each worker
    itself and a reward process. Read after several steps, for what comes and goes is not part of it."""
    readings = []
    for step in range(2, 7):
        live.wait_for_step(step)
        readings.append(live.threads())
    assert min(map(len, readings)) <= MAX_PROCESSES, readings
    assert min(sum(reading.values()) for reading in readings) < MAX_THREADS, readings


@pytest.mark.slow
def test_a_run_is_stopped_gone_on_with_elsewhere_exported_and_built_upon(tiny, tmp_path):
    job = troubled_job(tiny, workerGroups=TWO_WORKERS, checkpoint={"everySteps": 0}, stop={"steps": 10000})
    with live_run(job, tmp_path) as live:
        live.wait_for_step(1)
        assert_is_small(live)
        live.wait_for(lambda: status_of(tmp_path)["phase"] == "Running")  # its supervisor looks from time to time
        live.process.send_signal(signal.SIGINT)
        stopped = live.finished()
    assert stopped.code == 76, stopped.output + stopped.logs
    (checkpoint,) = committed(stopped.directory / "checkpoints")
    last = checkpoint.step
    assert steps_of(stopped) == list(range(1, last + 1))
    assert status_of(tmp_path)["phase"] == "Stopped" and "rljob run job.yaml" in stopped.output

    last += 1
    changes = ("workerGroups.0.accelerator.count=4", f"stop.steps={last}")
    resumed = run_job(job, tmp_path, *(part for change in changes for part in ("--set", change)))
    assert resumed.code == 0, resumed.output + resumed.logs
    assert f"going on from the checkpoint of step {last - 1}, with changes: " in resumed.output
    assert "-> 4" in resumed.output
    assert steps_of(resumed) == list(range(1, last + 1))

    exported = rljob(tmp_path, "export", "runs/test", "out")
    assert exported.returncode == 0, exported.stderr
    state = saved_state(resumed, tmp_path)
    base = AutoModelForCausalLM.from_pretrained(tiny / "model").state_dict()
    assert any(not torch.equal(weights, base[name]) for name, weights in state["model"].items())
    assert_same_weights(state["model"], AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict())
    assert int(state["optimizer"]["num_steps"]) == last

    # a learning rate that no weight can feel: after step 1 they are still those that the run began with
    gentle = job["spec"]["training"] | {"learningRate": 1.0e-30}
    init = {"everySteps": 1, "initFrom": "runs/test"}
    heir = run_job(troubled_job(tiny, name="heir", training=gentle, checkpoint=init, stop={"steps": 1}), tmp_path)
    assert heir.code == 0, heir.output + heir.logs
    assert steps_of(heir) == [1]
    inherited = saved_state(heir, tmp_path)
    assert_same_weights(inherited["model"], state["model"])
    assert int(inherited["optimizer"]["num_steps"]) == 1


@pytest.mark.slow
def test_a_run_outlives_a_killed_supervisor_and_an_impatient_user(tiny, tmp_path):
    job = troubled_job(tiny, stop={"steps": 3})
    ask_for(tmp_path, steps={2: "hold"})
    with live_run(job, tmp_path) as live:
        live.wait_for(held(tmp_path, 2).exists)
        for module in ("databuffer", "launcher", "runtime", "rewards.running.process", "forkserver"):
            assert live.pids(f"rljob_worker.{module}"), module
        live.process.kill()
        live.finished()  # waits until none of them is left
    lost = rljob(tmp_path, "status", "test").stdout
    assert "Lost" in lost and "died without a word; `rljob run` goes on" in lost

    ask_for(tmp_path, steps={3: "hold"})
    with live_run(job, tmp_path) as live:
        live.wait_for(held(tmp_path, 3).exists)
        assert "going on from the checkpoint of step 1" in live.output
        live.process.send_signal(signal.SIGINT)
        live.wait_for(lambda: "once more stops now" in live.output)
        live.process.send_signal(signal.SIGINT)
        interrupted = live.finished()
    assert interrupted.code == 130, interrupted.output + interrupted.logs
    assert [item.step for item in committed(interrupted.directory / "checkpoints")] == [1, 2]
    assert status_of(tmp_path)["phase"] == "Stopped"

    ask_for(tmp_path)
    whole = run_job(job, tmp_path)
    assert whole.code == 0, whole.output + whole.logs
    assert "going on from the checkpoint of step 2" in whole.output
    assert steps_of(whole) == [1, 2, 3]
