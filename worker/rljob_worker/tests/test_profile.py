"""A run leaves the profile of a step in its folder, and counts no step twice."""

import gzip
import json

import pytest

from rljob_worker.tests.jobs import make_job, run_job


def events_of(path):
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def names_in(path):
    return {event.get("name") for event in events_of(path)}


@pytest.mark.slow
def test_a_profiled_step_leaves_traces_of_what_is_asked_for_and_a_timeline_of_all(tiny, tmp_path):
    job = make_job(tiny)
    job["spec"]["training"]["profile"] = {"steps": [2], "ranks": [1], "stages": ["rollout", "update"]}
    run = run_job(job, tmp_path)
    assert run.code == 0, run.output + run.logs
    assert [line["step"] for line in run.metrics] == [0, 1, 2]
    (step,) = (run.directory / "profile").iterdir()
    assert step.name == "step-2"
    files = ["timeline.json.gz", "train-1.rollout.trace.json.gz", "train-1.update.trace.json.gz"]
    assert sorted(path.name for path in step.iterdir()) == files
    # a backward pass runs in a thread of its own, and there is none while rows are generated
    backward = "autograd::engine::evaluate_function: MmBackward0"
    traced = {stage: names_in(step / f"train-1.{stage}.trace.json.gz") for stage in ("rollout", "update")}
    assert {"aten::mm", backward} <= traced["update"]
    assert "aten::mm" in traced["rollout"] and backward not in traced["rollout"]
    events = [event for event in events_of(step / "timeline.json.gz") if event["ph"] == "X"]
    assert {event["tid"] for event in events} == {0, 1}
    blocks = {event["name"]: event["args"] for event in events}
    assert blocks.keys() >= {"step 2", "rollout", "reward", "update: take rows", "checkpoint", "validation"}
    assert blocks["update"].keys() >= {"forward", "backward", "optimizer"}
