"""Whole jobs of teams of two policies: solver and checker, in this process with a critic for each, and on any number of
workers."""

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file

from rljob_api.planning.plan import Plan
from rljob_api.planning.planner import plan
from rljob_api.v1alpha1 import RLJob
from rljob_worker.checkpoint.manifest import committed
from rljob_worker.metrics.by_policy import label_and_name
from rljob_worker.tests.baselines import write_files
from rljob_worker.tests.comparable import PRECISION, on_workers
from rljob_worker.tests.jobs import CPU, make_job, run_job
from rljob_worker.tests.metrics import HOW_IT_WAS_SPLIT, samples, without_times
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


def talking_model(folder, tiny):
    """The tiny model with a chat template."""
    model = shutil.copytree(tiny / "model", folder / "model")
    (model / "chat_template.jinja").write_text(TEMPLATE)
    return model


def team_plan(folder, tiny) -> Plan:
    model = talking_model(folder, tiny)
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


ADAPTER = {"adapter": {"rank": 4}}
CASES = {
    "critics, and updates that compare whole distributions": (
        {},
        {"name": "MARFT", "groupSize": 2, "updateEpochs": 2, "kl": {"coefficient": 0.01, "estimator": "Full"}},
        TEAM,
    ),
    "adapters on one base, prompts drawn again": (
        ADAPTER,
        {"name": "DAPO", "groupSize": 2, "kl": {"coefficient": 0.01}, "sampling": {"maxRounds": 20}},
        TEAM | {"reward": "Shared"},
    ),
}


def team_job(tiny, model, workers, case):
    """Numbers are Float64, and the pipeline is the algorithm's own."""
    of_models, algorithm, team = CASES[case]
    job = make_job(
        tiny,
        models=[{"name": policy, "path": str(model), **of_models} for policy in ("left", "right")],
        rewards=[{"name": "length", "run": "team_rewards:reward"}],
        algorithm=algorithm,
        rollout={"maxResponseTokens": 60, "conversation": team},
        training={"learningRate": 1.0e-3, "precision": "Float64", "tokensPerMicroBatch": 256},
        workerGroups=on_workers(workers),
        validation={"maxRows": 4},
        stop={"steps": 2},
    )
    job["spec"]["data"]["maxPromptTokens"] = 200
    return job


def learnt(run):
    """Metrics of every step, but those of time and of how rows were dealt."""
    return [
        {name: value for name, value in step.items() if not label_and_name(name)[1].startswith(HOW_IT_WAS_SPLIT)}
        for step in without_times(run.metrics)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_team_learns_on_any_number_of_workers_what_it_learns_on_one(tiny, tmp_path, case):
    model, runs = talking_model(tmp_path, tiny), {}
    for workers in (1, 2, 4):
        folder = tmp_path / str(workers)
        folder.mkdir()
        write_files(folder, {"team_rewards.py": REWARDS})
        runs[workers] = run_job(team_job(tiny, model, workers, case), folder)
        assert runs[workers].code == 0, runs[workers].output + runs[workers].logs
    one = runs.pop(1)
    for policy in ("left", "right"):
        assert all(step[f"policy/{policy}/update/gradient_norm"] > 0 for step in one.metrics[1:])
    for workers, other in runs.items():
        for expected, step in zip(learnt(one), learnt(other), strict=True):
            assert step.keys() == expected.keys()
            others = {
                name: (step[name], value)
                for name, value in expected.items()
                if not math.isclose(step[name], value, rel_tol=PRECISION, abs_tol=1e-12)
            }
            assert not others, (workers, step["step"], json.dumps(others))
        common = samples(one).keys() & samples(other).keys()
        assert common and all(samples(one)[row] == samples(other)[row] for row in common)
