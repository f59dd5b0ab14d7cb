"""A whole job of a team of two policies, in this process: solver and checker, MARFT, a critic for each."""

import shutil

import pytest
import torch
from safetensors.torch import load_file

from rljob_api.planning.plan import Plan
from rljob_api.planning.planner import plan
from rljob_api.v1alpha1 import RLJob
from rljob_worker.checkpoint.manifest import committed
from rljob_worker.tests.jobs import CPU, make_job
from rljob_worker.tests.metrics import without_times
from rljob_worker.tests.test_policies import exported, lines, run

TEMPLATE = (
    "{% for message in messages %}{{ message['role'][0] + ':' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'a:' }}{% endif %}"
)
REWARDS = '''
def reward(row):
    """Each agent likes another length."""
    assert row["agent"] in ("solver", "checker")
    return len(row["response"]) * (1 if row["agent"] == "solver" else -1)
'''
TEAM = {
    "agents": [
        {"name": "solver", "policy": "left", "stopWord": "never"},
        {"name": "checker", "policy": "right", "system": "Check.", "hears": ["solver"]},
    ],
    "rounds": 2,
    "maxRows": 2,
    "reward": "PerAgent",
}


def stages():
    """The team's pipeline, on one worker without a data buffer: nothing is balanced."""
    policies = ("left", "right")
    critics = [f"critic_{policy}" for policy in policies]
    result = [
        {"name": "rollout", "run": "Rollout", "models": policies},
        {"name": "reward", "run": "Reward", "after": ["rollout"]},
        {"name": "old", "run": "LogProbs", "models": policies, "after": ["rollout"]},
        {"name": "values", "run": "Values", "models": critics, "after": ["rollout"]},
        {"name": "advantage", "run": "Advantage", "after": ["reward", "old", "values"]},
    ]
    for policy in policies:
        result.append({"name": policy, "run": "UpdatePolicy", "models": [policy], "after": ["advantage"]})
    for critic in critics:
        result.append({"name": critic, "run": "UpdateCritic", "models": [critic], "after": ["advantage"]})
    return result


def team_plan(folder, tiny) -> Plan:
    model = shutil.copytree(tiny / "model", folder / "model")
    (model / "chat_template.jinja").write_text(TEMPLATE)
    job = make_job(
        tiny,
        models=[{"name": "left", "path": str(model)}, {"name": "right", "path": str(model)}],
        rewards=[{"name": "length", "run": "team_rewards:reward"}],
        algorithm={"name": "MARFT", "groupSize": 2, "updateEpochs": 2, "kl": {"coefficient": 0.0}},
        rollout={"maxResponseTokens": 60, "conversation": TEAM},
        workerGroups=[{"name": "train", "accelerator": CPU}],
        checkpoint={"everySteps": 1},
        validation={"maxRows": 2},
        stop={"steps": 2},
        dag={"stages": stages()},
    )
    job["spec"]["data"]["maxPromptTokens"] = 200
    return plan(RLJob.model_validate(job))


def without_replays(steps):
    """All but times, and how much came from a journal."""
    return [{k: v for k, v in step.items() if "replayed" not in k} for step in without_times(steps)]


@pytest.mark.slow
def test_a_team_of_two_policies_learns_and_goes_on_bit_for_bit(tiny, tmp_path, monkeypatch):
    (tmp_path / "team_rewards.py").write_text(REWARDS)
    monkeypatch.setenv("RLJOB_CODE", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    made, run_dir = team_plan(tmp_path, tiny), tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "plan.json").write_text(made.canonical_json())
    run(made, run_dir, attempt=1)
    whole = lines(run_dir / "metrics.jsonl")
    _, *steps = whole
    for step in steps:
        for name in ("solver", "checker"):
            assert 1 <= step[f"conversation/agent/{name}/turns"] <= 2  # a turn may take all the tokens of its row
        assert step["conversation/agent/solver/reward"] > 0 > step["conversation/agent/checker/reward"]
        for policy in made.spec.policies:
            assert step[f"policy/{policy}/update/gradient_norm"] > 0
            assert step[f"policy/{policy}/critic/update/gradient_norm"] > 0
    shown = [line for line in lines(run_dir / "samples.jsonl") if line.get("messages")]
    assert {message.get("agent") for message in shown[0]["messages"]} == {None, "solver", "checker"}
    newest = committed(run_dir / "checkpoints")[-1].path
    names = {path.name for path in (newest / "engines").iterdir()}
    assert names == {"train-left", "train-right", "train-critic_left", "train-critic_right"}
    before = load_file(tiny / "model" / "model.safetensors")
    name = next(iter(before))
    weights = {policy: exported(run_dir, policy, 2) for policy in made.spec.policies}
    assert all(not torch.equal(of_policy[name], before[name]) for of_policy in weights.values())
    assert not torch.equal(weights["left"][name], weights["right"][name])
    shutil.rmtree(newest)
    run(made, run_dir, attempt=2)
    again = [without_replays(run) for run in (lines(run_dir / "metrics.jsonl"), whole)]
    assert again[0] == again[1]
    for policy, expected in weights.items():
        shutil.rmtree(run_dir.parent / f"{policy}-2")
        assert all(torch.equal(tensor, expected[key]) for key, tensor in exported(run_dir, policy, 2).items())
