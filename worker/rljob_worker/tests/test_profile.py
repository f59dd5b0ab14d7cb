"""A run leaves the profile of a step in its folder, and counts no step twice."""

import gzip
import json

from rljob_worker.tests.jobs import make_job, run_job


def events_of(path):
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def test_a_profiled_step_leaves_a_trace_of_each_worker_and_a_timeline_of_all(tiny, tmp_path):
    job = make_job(tiny)
    job["spec"]["training"]["profile"] = {"steps": [2]}
    run = run_job(job, tmp_path)
    assert run.code == 0, run.output + run.logs
    assert [line["step"] for line in run.metrics] == [0, 1, 2]
    (step,) = (run.directory / "profile").iterdir()
    assert step.name == "step-2"
    files = ["timeline.json.gz", "train-0.trace.json.gz", "train-1.trace.json.gz"]
    assert sorted(path.name for path in step.iterdir()) == files
    for rank in (0, 1):
        names = {event.get("name") for event in events_of(step / f"train-{rank}.trace.json.gz")}
        # generation, scoring and the update: a backward pass runs in a thread of its own
        assert {"aten::mm", "autograd::engine::evaluate_function: MmBackward0"} <= names
    blocks = {event["name"]: event["args"] for event in events_of(step / "timeline.json.gz") if event["ph"] == "X"}
    assert blocks.keys() >= {"step 2", "rollout", "reward", "update: take rows", "checkpoint", "validation"}
    assert blocks["update"].keys() >= {"forward", "backward", "optimizer"}
