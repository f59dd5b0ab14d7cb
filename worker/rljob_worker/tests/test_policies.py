"""A whole job with two policies, in this process: one worker, whose stages hand their rows on."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from rljob_api.planning.plan import Plan
from rljob_api.planning.planner import plan
from rljob_api.v1alpha1 import RLJob
from rljob_worker.checkpoint.export import export_run
from rljob_worker.checkpoint.manifest import committed
from rljob_worker.errors import InvalidJob
from rljob_worker.metrics.reporter import Reporter
from rljob_worker.runtime.joining import build_worker
from rljob_worker.runtime.lead.lead import build_lead
from rljob_worker.runtime.setup.environment import WorkerEnvironment
from rljob_worker.runtime.tests.control_channel import FakeControlChannel
from rljob_worker.tests.jobs import CPU, make_job
from rljob_worker.tests.metrics import without_times

REWARD = "rljob_worker.tests.fault_injection:reward"
STEPS = 2


def pipeline(policy, reward):
    return [
        {"name": f"rollout_{policy}", "run": "Rollout", "models": [policy]},
        {"name": f"reward_{policy}", "run": "Reward", "after": [f"rollout_{policy}"], "rewards": [reward]},
        {"name": f"advantage_{policy}", "run": "Advantage", "after": [f"reward_{policy}"]},
        {"name": f"update_{policy}", "run": "UpdatePolicy", "models": [policy], "after": [f"advantage_{policy}"]},
    ]


def two_policies(tiny, curt) -> Plan:
    """Both begin with the same weights. One is rewarded for what the other is punished for, on the same questions,
    which each has as its own chat template writes them."""
    job = make_job(
        tiny,
        models=[{"name": "left", "path": str(tiny / "model")}, {"name": "right", "path": str(curt)}],
        rewards=[{"name": "varied", "run": REWARD}, {"name": "plain", "run": REWARD, "weight": -1.0}],
        workerGroups=[{"name": "train", "accelerator": CPU}],
        checkpoint={"everySteps": 1},
        validation={"maxRows": 2},
        stop={"steps": STEPS},
        dag={"stages": pipeline("left", "varied") + pipeline("right", "plain")},
    )
    job["spec"]["data"]["applyChatTemplate"] = True
    return plan(RLJob.model_validate(job))


@pytest.fixture(scope="module")
def ran(tiny, tmp_path_factory):
    """The plan of the job, and the folder of its run."""
    folder = tmp_path_factory.mktemp("policies")
    curt = shutil.copytree(tiny / "model", folder / "curt")
    (curt / "chat_template.jinja").write_text("{{ messages[0]['content'] }} = ")
    made = two_policies(tiny, curt)
    run_dir = folder / "run"
    run_dir.mkdir()
    (run_dir / "plan.json").write_text(made.canonical_json())
    run(made, run_dir, attempt=1)
    return made, run_dir


def run(made, run_dir, attempt):
    """One attempt, to its end."""
    environment = WorkerEnvironment(
        plan=made, group="train", host_index=0, local_rank=0, attempt=attempt, peers="", buffer_socket="", token="",
        run_dir=run_dir, resume="auto",
    )  # fmt: skip
    buffer = FakeControlChannel(1).end(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLJOB_RUN_DIR", str(run_dir))  # where the reward looks for trouble
        words = build_worker(environment, buffer, build_lead(environment, buffer, 0, Reporter(None))).run()
    assert (words.code, words.step) == (0, STEPS)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def exported(run_dir, policy, step):
    out = run_dir.parent / f"{policy}-{step}"
    if not out.exists():
        export_run(run_dir, out, step, merged=False, model=policy)
    return load_file(out / "model.safetensors")


def test_each_policy_learns_from_its_own_rows_by_its_own_reward(ran):
    _, run_dir = ran
    opening, *steps = lines(run_dir / "metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2]
    for step in steps:
        left, right = step["policy/left/reward/mean"], step["policy/right/reward/mean"]
        assert left > 0 > right and step["reward/mean"] == (left + right) / 2
        for policy, other in (("left", "right"), ("right", "left")):
            assert step[f"policy/{policy}/update/gradient_norm"] > 0
            assert f"policy/{policy}/reward/std" in step and "reward/square_mean" not in str(step)
            assert step[f"policy/{policy}/tokens/total"] + step[f"policy/{other}/tokens/total"] == step["tokens/total"]
        assert not {"loss/policy", "policy/left/time/forward_seconds"} & set(step)
        assert {"time/rollout_left_seconds", "time/update_right_seconds", "time/forward_seconds"} & set(step)
    for step in (opening, steps[-1]):
        accuracies = [step[f"policy/{policy}/validation/accuracy/tiny"] for policy in ("left", "right")]
        assert step["validation/accuracy"] == sum(accuracies) / 2


def test_policies_answer_the_same_questions_each_in_its_own_way(ran):
    _, run_dir = ran
    first = [line for line in lines(run_dir / "samples.jsonl") if line["step"] == 1]
    shown = {policy: {item["row"]: item for item in first if item["policy"] == policy} for policy in ("left", "right")}
    assert shown["left"].keys() == shown["right"].keys() and len(shown["left"]) == 8
    for row, mine in shown["left"].items():
        other = shown["right"][row]
        assert mine["reference"] == other["reference"] if "reference" in mine else mine["source"] == other["source"]
        assert other["prompt"].endswith(" = ") and mine["prompt"] != other["prompt"]
    assert [item["response"] for item in shown["left"].values()] != [
        item["response"] for item in shown["right"].values()
    ]


def test_each_policy_is_kept_and_exported_under_its_name(ran, tiny):
    made, run_dir = ran
    newest = committed(run_dir / "checkpoints")[-1].path
    assert sorted(path.name for path in (newest / "engines").iterdir()) == ["train-left", "train-right"]
    before = load_file(tiny / "model" / "model.safetensors")
    left, right = (exported(run_dir, policy, STEPS) for policy in made.spec.policies)
    name = next(iter(before))
    assert before.keys() == left.keys() == right.keys()
    assert not torch.equal(left[name], before[name]) and not torch.equal(right[name], before[name])
    assert not torch.equal(left[name], right[name])
    assert (run_dir.parent / f"right-{STEPS}" / "chat_template.jinja").read_text().endswith(" = ")
    with pytest.raises(InvalidJob, match="several policies; write --model with one of left, right"):
        export_run(run_dir, run_dir.parent / "nowhere", STEPS, merged=False)


def test_a_job_with_two_policies_goes_on_bit_for_bit(ran):
    made, run_dir = ran
    whole, samples = lines(run_dir / "metrics.jsonl"), (run_dir / "samples.jsonl").read_text()
    weights = {policy: exported(run_dir, policy, STEPS) for policy in made.spec.policies}
    shutil.rmtree(committed(run_dir / "checkpoints")[-1].path)
    run(made, run_dir, attempt=2)
    assert without_times(lines(run_dir / "metrics.jsonl")) == without_times(whole)
    assert (run_dir / "samples.jsonl").read_text() == samples
    for policy, expected in weights.items():
        shutil.rmtree(run_dir.parent / f"{policy}-{STEPS}")
        result = exported(run_dir, policy, STEPS)
        assert all(torch.equal(result[name], expected[name]) for name in expected)
