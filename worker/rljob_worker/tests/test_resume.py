"""Steps + kill + steps == as many without a kill, bit for bit: weights, optimizer, every metric but times."""

import json
import shutil
import zlib
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from rljob_worker.checkpoint.manifest import committed
from rljob_worker.tests.jobs import CPU, DISAGGREGATED, PPO, make_job, run_job
from rljob_worker.tests.metrics import without_times

CRASH = '''
import os, signal
from pathlib import Path
from rljob_worker.tests.fault_injection import await_commit

def once(batch, context):
    """Kills its worker in step 3, the first time a run gets there."""
    marker = Path(__file__).with_name("crashed")
    if context.step == 3 and not marker.exists():
        marker.touch()
        await_commit(2)
        os.kill(os.getpid(), signal.SIGKILL)
    return {"style": [0.0] * len(batch)}
'''
TWO_PODS = [{"name": "rollout", "accelerator": CPU}, {"name": "train", "accelerator": CPU | {"count": 2}}]
GRPO = {"name": "GRPO", "groupSize": 4, "kl": {"coefficient": 0.01, "target": 0.05, "horizon": 100}}


def dag_of(algorithm: dict, split: bool) -> dict:
    """The algorithm's own pipeline with a stage that crashes beside it."""
    scoring = [{"name": "reference", "run": "LogProbs", "models": ["reference"], "after": ["rollout"]}]
    update = [
        {"name": "update", "run": "UpdatePolicy", "models": ["actor"], "after": ["advantage"], "balance": "Tokens"}
    ]
    if algorithm["name"] == "PPO":
        scoring.append({"name": "values", "run": "Values", "models": ["critic"], "after": ["rollout"]})
        update.append(
            {
                "name": "update_critic",
                "run": "UpdateCritic",
                "models": ["critic"],
                "after": ["advantage"],
                "balance": "Tokens",
            }
        )
    crash = {"name": "crash", "run": "crash:once", "after": ["rollout"], "reads": ["response_ids"], "writes": ["style"]}
    crash["group"] = "train"
    return {
        "stages": [
            {"name": "rollout", "run": "Rollout", "models": ["actor"], "group": "rollout" if split else "train"},
            {"name": "reward", "run": "Reward", "after": ["rollout"], "group": "rollout" if split else "train"},
            crash,
            *scoring,
            {"name": "advantage", "run": "Advantage", "after": ["reward", "crash", *[s["name"] for s in scoring]]},
            *update,
        ]
    }


def checkpoint_digest(run_dir: Path) -> dict[str, int]:
    """Checksums of the shards of the last checkpoint: model, optimizer, schedule."""
    files = committed(run_dir / "checkpoints")[-1].manifest.files
    return {name: entry.crc32 for name, entry in files.items() if name.endswith(".distcp")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "split"),
    [
        pytest.param(GRPO, False, id="grpo-colocated"),
        pytest.param(PPO | {"kl": GRPO["kl"]}, True, id="ppo-disaggregated"),
    ],
)
def test_a_killed_run_ends_bit_for_bit_like_one_that_was_not(tiny, tmp_path, algorithm, split):
    spec = {"algorithm": algorithm, "stop": {"steps": 3}, "dag": dag_of(algorithm, split)}
    if split:
        spec["workerGroups"] = TWO_PODS
    runs = {}
    for name in ("whole", "killed"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "crash.py").write_text(CRASH)
        if name == "whole":
            (folder / "crashed").touch()
        runs[name] = run_job(make_job(tiny, **spec), folder)
        assert runs[name].code == 0, runs[name].output + runs[name].logs
    assert "restart 1 of 3, from the checkpoint of step 2" in runs["killed"].output
    learning = [step for step in runs["whole"].metrics if step["step"] > 0]
    assert all(step["update/gradient_norm"] > 0 for step in learning)
    if algorithm["name"] == "PPO":
        assert all(step["loss/value"] > 0 and step["critic/update/gradient_norm"] > 0 for step in learning)
    if split:
        crossing = ("data/bytes_rollout->update", "data/bytes_reward->advantage", "data/bytes_weights/actor")
        assert all(learning[-1][name] > 0 for name in crossing)
    assert checkpoint_digest(runs["killed"].directory) == checkpoint_digest(runs["whole"].directory)
    assert without_times(runs["killed"].metrics) == without_times(runs["whole"].metrics)
    samples = [(run.directory / "samples.jsonl").read_text() for run in runs.values()]
    assert zlib.crc32(samples[0].encode()) == zlib.crc32(samples[1].encode())
    assert [json.loads(line)["step"] for line in samples[0].splitlines()][-1] == 3


@pytest.mark.slow
def test_a_run_that_goes_on_needs_no_initial_weights_of_what_it_trains(tiny, tmp_path):
    """Nor does a model that generates with what another group trains; a reference is read from its own path."""
    model = tmp_path / "model"
    shutil.copytree(tiny / "model", model)
    models = [{"name": "actor", "path": str(model)}, {"name": "reference", "path": str(tiny / "model")}]
    spec = {"models": models, "algorithm": GRPO, "workerGroups": DISAGGREGATED}
    begun = run_job(make_job(tiny, **spec, stop={"steps": 1}), tmp_path)
    assert begun.code == 0, begun.output + begun.logs
    for weights in model.glob("*.safetensors"):
        save_file({}, weights)  # whoever read it would miss every tensor
    gone_on = run_job(make_job(tiny, **spec, stop={"steps": 2}), tmp_path)
    assert gone_on.code == 0, gone_on.output + gone_on.logs
    assert [step["step"] for step in gone_on.metrics if step["step"]] == [1, 2]
