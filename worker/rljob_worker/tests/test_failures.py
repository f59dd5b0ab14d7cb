"""Whatever breaks, a run names the cause, keeps its last checkpoint, and goes on from it."""

import os
import re
import shutil
import signal

import pytest

from rljob_worker.checkpoint.manifest import committed, damage, directory_name
from rljob_worker.rundir.ownership import Owner
from rljob_worker.tests.fault_injection import ask_for, held
from rljob_worker.tests.jobs import CPU, make_job, run_job, troubled_job
from rljob_worker.tests.live_run import live_run

ATTEMPT = ("databuffer", "launcher", "runtime", "rewards.running.process")
"""What runs as long as an attempt does."""


def steps_of(run):
    return [line["step"] for line in run.metrics]


def checkpoints_of(run):
    return committed(run.directory / "checkpoints")


def run_with_a_bad_reward(job, folder):
    """A reward hangs on one row of step 1 and raises on one of step 2."""
    # 4 prompts x 4 responses: step 1 has the ids 0 to 15, step 2 those of 16 to 31; people count from 1
    ask_for(folder, rows={3: "hang", 17: "raise"})
    run = run_job(job, folder)
    assert run.code == 65, run.output + run.logs
    return run


@pytest.mark.slow
def test_a_user_repairs_a_reward_and_goes_on_unless_the_data_changed(tiny, tmp_path):
    """The reward counts nothing where it hangs, and ends the run where it raises."""
    job = troubled_job(tiny, stop={"steps": 2})
    train = tmp_path / "train.parquet"
    shutil.copy(tiny / "train.parquet", train)
    job["spec"]["data"]["train"][0]["path"] = str(train)
    bad = run_with_a_bad_reward(job, tmp_path)
    assert steps_of(bad) == [1] and bad.metrics[0]["reward/timeouts_total"] >= 1
    assert 'reward "varied" timed out after 1 s on row 4 (source tiny); its reward is 0' in bad.logs
    assert 'reward "varied" on row 18 (source tiny)' in bad.output
    assert "LookupError: no idea how good" in bad.output and "fault_injection.py" in bad.output

    ask_for(tmp_path)
    whole = run_job(job, tmp_path)
    assert whole.code == 0, whole.output + whole.logs
    assert "going on from the checkpoint of step 1" in whole.output
    assert steps_of(whole) == [1, 2]

    shutil.copy(tiny / "validation.parquet", train)
    job["spec"]["stop"] = {"steps": 3}
    changed = run_job(job, tmp_path)
    assert changed.code == 65, changed.output + changed.logs
    assert "the training data has changed since the checkpoint was written" in changed.output
    assert steps_of(changed) == [1, 2] and checkpoints_of(changed)[-1].step == 2
    for run in (bad, whole, changed):
        assert "Traceback" not in run.output


@pytest.mark.slow
def test_a_reward_that_is_no_number_and_a_misspelt_column_end_a_run_in_words(tiny, tmp_path):
    job = troubled_job(tiny, stop={"steps": 3})
    ask_for(tmp_path, rows={17: "nan"})
    not_a_number = run_job(job, tmp_path)
    assert not_a_number.code == 65, not_a_number.output + not_a_number.logs
    assert 'reward "varied" on row 18' in not_a_number.output and "nan" in not_a_number.output

    ask_for(tmp_path, steps={2: "misspell"})
    misspelt = run_job(job, tmp_path)
    assert misspelt.code == 65, misspelt.output + misspelt.logs
    assert "going on from the checkpoint of step 1" in misspelt.output
    assert "returned ['clam'], but the job declares writes: ['calm']" in misspelt.output
    for run in (not_a_number, misspelt):
        assert "Traceback" not in run.output


@pytest.mark.slow
def test_a_full_disk_and_damaged_files_never_cost_more_than_the_checkpoint_they_hit(tiny, tmp_path):
    job = troubled_job(tiny, stop={"steps": 5})
    ask_for(tmp_path, steps={3: "fill_disk"})
    full = run_job(job, tmp_path)
    assert steps_of(full) in ([1, 2], [1, 2, 3]), "it is reported where step 3 is reported, or step 4 begins to save"
    job["spec"]["stop"] = {"steps": 3}
    assert full.code == 74, full.output + full.logs
    assert directory_name(3, Owner(1)) in full.output and "the previous checkpoint is intact" in full.output
    assert [checkpoint.step for checkpoint in checkpoints_of(full)] == [1, 2]
    assert not any(map(damage, checkpoints_of(full)))
    assert not (full.directory / "checkpoints" / directory_name(3, Owner(1))).exists()

    ask_for(tmp_path)
    older, newest = checkpoints_of(full)
    corrupt(newest)
    torn = full.directory / "checkpoints" / directory_name(3, Owner(9))
    shutil.copytree(older.path, torn)
    (torn / "manifest.json").write_text((older.path / "manifest.json").read_text()[:100])
    fallen_back = run_job(job, tmp_path)
    assert fallen_back.code == 0, fallen_back.output + fallen_back.logs
    assert "warning: passing over the checkpoint of step 2" in fallen_back.output
    assert "does not match its checksum" in fallen_back.output
    assert "warning: going on from the checkpoint of step 1 instead" in fallen_back.output
    assert steps_of(fallen_back) == [1, 2, 3]
    assert [(checkpoint.step, checkpoint.manifest.attempt) for checkpoint in checkpoints_of(fallen_back)] == [
        (2, 2),
        (3, 2),
    ]

    left = checkpoints_of(fallen_back)
    for checkpoint in left:
        corrupt(checkpoint)
    job["spec"]["stop"] = {"steps": 4}
    refused = run_job(job, tmp_path)
    assert refused.code == 74, refused.output + refused.logs
    assert "no good checkpoint is left" in refused.output and "start over with another name" in refused.output
    assert checkpoints_of(refused) == left and steps_of(refused) == [1, 2, 3]


def corrupt(checkpoint):
    """Turn one bit of a shard."""
    shard = next(checkpoint.path.rglob("*.distcp"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)


@pytest.mark.slow
def test_a_killed_data_buffer_or_launcher_costs_the_steps_since_the_checkpoint(tiny, tmp_path):
    groups = [{"name": "rollout", "accelerator": CPU}, {"name": "train", "accelerator": CPU}]
    ask_for(tmp_path, steps={3: "hold"})
    with live_run(troubled_job(tiny, workerGroups=groups, stop={"steps": 4}), tmp_path) as live:
        live.wait_for(held(tmp_path, 3).exists)
        assert len(live.pids("rljob_worker.databuffer")) == 2
        os.kill(live.pids("rljob_worker.databuffer")[0], signal.SIGKILL)
        ask_for(tmp_path, steps={4: "hold"})

        live.wait_for(held(tmp_path, 4).exists)
        of_attempt = {module: set(live.pids(f"rljob_worker.{module}")) for module in ATTEMPT}
        assert all(of_attempt.values()) and len(of_attempt["launcher"]) == 2
        os.kill(of_attempt["launcher"].pop(), signal.SIGKILL)
        live.wait_for(lambda: "restart 2 of 3" in live.output)
        assert not set.union(*of_attempt.values()) & set(live.pids()), "both pods go, whichever was hit"
        ask_for(tmp_path)
        run = live.finished()
    assert run.code == 0, run.output + run.logs
    assert "-0: no last words; killed by signal 9" in run.output
    assert "databuffer-" in run.output and "restart 1 of 3, from the checkpoint of step 2" in run.output
    assert "launcher-" in run.output and "restart 2 of 3, from the checkpoint of step 3" in run.output
    assert steps_of(run) == [1, 2, 3, 4]


@pytest.mark.slow
def test_restarts_have_an_end_with_a_name(tiny, tmp_path):
    ask_for(tmp_path, steps={1: "die"})
    run = run_job(troubled_job(tiny, failurePolicy={"maxRestarts": 1}), tmp_path)
    assert run.code == 70, run.output + run.logs
    assert "restart 1 of 1, from the beginning: there is no checkpoint yet" in run.output
    assert "rljob: worker-train-0-0: " in run.output and "killed by signal 9 (often out of memory)" in run.output
    assert "all 1 restarts of failurePolicy are used up" in run.output


@pytest.mark.slow
def test_a_job_that_cannot_be_is_refused_at_once_with_every_reason(tiny, tmp_path):
    job = make_job(
        tiny, training={"engine": "Megatron", "compile": True}, workerGroups=[{"name": "train", "replicas": 3}], sead=4
    )
    job["spec"]["algorithm"] = {"name": "GRPO", "groupSize": 1}
    job["spec"]["stop"] = {"steps": "many"}
    cycle = {"reward": ["advantage"], "advantage": ["reward"], "update": ["advantage", "scoring"]}
    runs = {"reward": "Reward", "advantage": "Advantage", "update": "UpdatePolicy"}
    stages = [{"name": name, "run": runs[name], "after": after} for name, after in cycle.items()]
    job["spec"]["dag"] = {"stages": [{"name": "rollout", "run": "Rollout", "models": ["actor"]}, *stages]}
    refused = run_job(job, tmp_path)
    assert refused.code == 64
    for words in (
        "spec.sead", "Did you mean seed?", "spec.stop.steps", "spec.training.engine", "not built yet",
        "spec.algorithm.groupSize", "spec.data.batchSize", "multiple of 3", "advantage -> reward", "scoring",
    ):  # fmt: skip
        assert words in refused.output, refused.output
    assert "Traceback" not in refused.output and not refused.directory.parent.exists()


@pytest.mark.slow
def test_files_that_are_not_there_are_missed_before_anything_starts(tiny, tmp_path):
    job = make_job(tiny, models=[{"name": "actor", "path": "./model"}])
    job["spec"]["data"]["train"] = [{"path": "data/train.parquet", "name": "tiny"}]
    refused = run_job(job, tmp_path)
    assert refused.code == 64
    for words in (f"Put it at {tmp_path}/model", f"Put it at {tmp_path}/data/train.parquet"):
        assert words in refused.output, refused.output
    assert not refused.directory.parent.exists()


def test_without_the_accelerators_that_it_wants_a_job_is_refused_before_anything_starts(tiny, tmp_path):
    groups = [{"name": "train", "accelerator": {"profile": "nvidia", "count": 2}}]
    refused = run_job(make_job(tiny, workerGroups=groups), tmp_path, CUDA_VISIBLE_DEVICES="")
    assert refused.code == 64, refused.output
    assert re.fullmatch(
        r"rljob: the job has 1 problem:\n"
        r"  spec.workerGroups \(line \d+\): no CUDA device for a pod of worker group train, which wants 2 "
        r"\(profile nvidia\). Use profile cpu, or run where there are enough.\n",
        refused.output,
    )
    assert not refused.directory.exists()


@pytest.mark.slow
def test_a_worker_without_its_accelerator_ends_the_run_at_its_first_attempt(tiny, tmp_path):
    # nothing says beforehand that a device of this profile is not there: the worker finds out
    groups = [{"name": "train", "accelerator": {"profile": "metax", "count": 1}}]
    refused = run_job(make_job(tiny, workerGroups=groups), tmp_path, CUDA_VISIBLE_DEVICES="")
    assert refused.code == 64, refused.output + refused.logs
    assert (
        "rljob: worker-train-0-0: no CUDA device for a pod of worker group train, which wants 1 (profile metax); "
        "use profile cpu" in refused.output
    )
    assert [path.name for path in (refused.directory / "logs").glob("attempt-*")] == ["attempt-1"]
    assert "Traceback" not in refused.output + refused.logs


@pytest.mark.slow
def test_data_and_models_that_do_not_fit_end_a_run_with_the_place_and_the_fix(tiny, tmp_path):
    job = troubled_job(tiny)
    missing_column = run_job(job, tmp_path / "data", "--set", "data.promptColumn=qestion")
    assert missing_column.code == 65, missing_column.output + missing_column.logs
    assert "has no column 'qestion'. Did you mean 'question'?" in missing_column.output
    unknown_model = run_job(job, tmp_path / "model", "--set", "models.0.path=qwen/typo", HF_HUB_OFFLINE="1")
    assert unknown_model.code == 64, unknown_model.output + unknown_model.logs
    assert "(--set models.0.path=qwen/typo): there is no directory qwen/typo here, the hub did" in unknown_model.output
    assert "its cache here does not have the model. Correct the name" in unknown_model.output
    for run in (missing_column, unknown_model):
        assert "Traceback" not in run.output and "restart" not in run.output
