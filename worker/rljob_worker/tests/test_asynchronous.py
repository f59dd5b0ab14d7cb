"""Generation ahead of training in whole jobs: a run is a function of the job, however it is interrupted or spread."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.engines.tests.builders import write_config
from rljob_worker.tests.jobs import CPU, PPO, Run, make_job, run_job
from rljob_worker.tests.live_run import live_run
from rljob_worker.tests.metrics import without_times
from rljob_worker.tests.test_resume import CRASH, checkpoint_digest

NUM_STEPS = 6
GRPO = {"name": "GRPO", "groupSize": 4, "kl": {"coefficient": 0.01}}
DAPO = {"name": "DAPO", "groupSize": 4, "kl": {"coefficient": 0.01}, "sampling": {"oversampling": 2.0, "maxRounds": 10}}
ALGORITHMS = {"GRPO": GRPO, "PPO": PPO | {"groupSize": 4}, "DAPO": DAPO}
PLACED = ("data/", "time/")
"""Metrics of who had which rows, and how long."""
PLAYED = ("conversation/trajectories_replayed", "policy/left/mismatch/", "policy/right/mismatch/")
"""Metrics of what was played again, and of log-probs of the engine, which round by what is decoded beside a row."""


def dag_of(name: str) -> dict[str, Any]:
    """The algorithm's own pipeline, with a stage that crashes before the update."""
    source = "sample" if name == "DAPO" else "rollout"
    crash = {"name": "crash", "run": "crash:once", "after": [source], "reads": ["response_ids"], "writes": ["style"]}
    update = {"after": ["advantage"], "balance": "Tokens", "group": "train"}
    stages: list[dict[str, Any]] = [
        {"name": source, "run": source.capitalize(), "models": ["actor"], "group": "rollout"},
        crash | {"group": "train"},
        {"name": "reference", "run": "LogProbs", "models": ["reference"], "after": [source], "group": "train"},
        {"name": "advantage", "run": "Advantage", "after": ["crash", "reference"], "group": "train"},
        {"name": "update", "run": "UpdatePolicy", "models": ["actor"], **update},
    ]
    if name != "DAPO":
        stages.append({"name": "reward", "run": "Reward", "after": [source], "group": "rollout"})
        stages[3]["after"].append("reward")
    if name == "PPO":
        stages.append({"name": "values", "run": "Values", "models": ["critic"], "after": [source], "group": "train"})
        stages.append({"name": "update_critic", "run": "UpdateCritic", "models": ["critic"], **update})
        stages[3]["after"].append("values")
    return {"stages": stages}


def asynchronous_job(tiny: Path, name: str, staleness: int, *, generators: int = 1, **spec: Any) -> dict[str, Any]:
    groups = [
        {"name": "rollout", "replicas": generators, "accelerator": CPU},
        {"name": "train", "accelerator": CPU | {"count": 2}},
    ]
    fields = {
        "workerGroups": groups,
        "algorithm": ALGORITHMS[name],
        "dag": dag_of(name),
        "rollout": {"maxResponseTokens": 12, "maxStaleness": staleness},
        "validation": {"maxRows": 8, "everySteps": 2},
        "stop": {"steps": NUM_STEPS},
    }
    return make_job(tiny, **fields | spec)


def run_in(folder: Path, job: dict[str, Any], *arguments: str, crashes: bool = False) -> Run:
    folder.mkdir(exist_ok=True)
    (folder / "crash.py").write_text(CRASH)
    if not crashes:
        (folder / "crashed").touch()
    run = run_job(job, folder, *arguments)
    assert run.code == 0, run.output + run.logs
    return run


def learnt(run: Run, others: Sequence[str] = ()) -> Any:
    """All that a run came to, whoever had which rows. others: prefixes of metrics to leave out."""
    samples = sorted((run.directory / "samples.jsonl").read_text().splitlines())
    return checkpoint_digest(run.directory), without_times(run.metrics, *PLACED, *others), samples


def staleness_of(run: Run) -> list[tuple[float, float]]:
    return [(step["staleness/mean"], step["staleness/max"]) for step in run.metrics if step["step"] > 0]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "staleness"), [("GRPO", 2), ("PPO", 1), ("DAPO", 2)])
def test_a_killed_run_ends_bit_for_bit_like_one_that_was_not(tiny, tmp_path, name, staleness):
    job = asynchronous_job(tiny, name, staleness, stop={"steps": NUM_STEPS})
    whole = run_in(tmp_path / "whole", job)
    killed = run_in(tmp_path / "killed", job, crashes=True)
    assert "restart 1 of 3, from the checkpoint of step 2" in killed.output
    assert learnt(killed) == learnt(whole)
    learning = [step for step in whole.metrics if step["step"] > 0]
    assert all(step["update/gradient_norm"] > 0 for step in learning)
    # validation of a step belongs to it, though it is made while a later one is generated
    assert [step["step"] for step in whole.metrics if "validation/accuracy" in step] == list(range(0, NUM_STEPS + 1, 2))
    for step in learning:
        for role in ("trainers", "generators"):
            by_cause = [value for name, value in step.items() if name.startswith(f"time/{role}_idle_seconds/")]
            assert len(by_cause) == 5 and sum(by_cause) == pytest.approx(step[f"time/{role}_idle_seconds"])
            assert 0 < step[f"time/{role}_idle_fraction"] < 1
    # two trainers wait for the first rows for as long as these are generated
    assert learning[0]["time/trainers_idle_seconds/rows"] > 0
    assert learning[-2]["time/generators_idle_seconds/weights"] == learning[-2]["time/weights_wait_seconds"] > 0
    # each step has four groups
    assert [step["rollout/groups_in_flight"] for step in learning] == [
        4 * min(step, staleness + 1) for step in range(1, NUM_STEPS + 1)
    ]
    newest = [min(step - 1, staleness) for step in range(1, NUM_STEPS + 1)]
    if name != "DAPO":  # whose surplus of one step has a place in the next
        assert staleness_of(whole) == [(age, age) for age in newest]


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_any_number_of_generators_draws_the_same(tiny, tmp_path, name):
    rollout = {"maxResponseTokens": 12, "maxStaleness": 1, "leaseRows": 8}  # leases of 2 groups: 2 of a batch
    runs = [
        run_in(tmp_path / str(generators), asynchronous_job(tiny, name, 1, generators=generators, rollout=rollout))
        for generators in (1, 2, 4)
    ]
    one, two, four = map(learnt, runs)
    assert one == two == four


@pytest.mark.slow
def test_versions_that_wait_on_the_device_draw_what_those_do_that_wait_on_the_host(tiny, tmp_path):
    """Also where the run is killed while one waits, and goes on."""
    host, device = (
        asynchronous_job(tiny, "GRPO", 1, weightSync={"staging": staging}) for staging in ("Host", "Device")
    )
    waiting_on_host = run_in(tmp_path / "host", host)
    killed = run_in(tmp_path / "device", device, crashes=True)
    assert "restart 1 of 3, from the checkpoint of step 2" in killed.output
    assert learnt(killed) == learnt(waiting_on_host)


def model_with_experts(tiny: Path, path: Path) -> dict[str, str]:
    """A model with experts that has the tiny one's tokens."""
    shutil.copytree(tiny / "model", path, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    tokens = json.loads((tiny / "model" / "config.json").read_text())
    sizes = {name: tokens[name] for name in ("vocab_size", "eos_token_id", "max_position_embeddings")}
    write_config(path, "qwen3_moe", **sizes)
    return {"name": "actor", "path": str(path), "initialise": "Random"}


def with_policies(tiny: Path) -> dict[str, Any]:
    """Two policies that generate in one group and train in another, each with rewards of its own."""
    stages = []
    for policy, reward in (("left", "varied"), ("right", "plain")):
        of = {"group": "train"}
        update = {"run": "UpdatePolicy", "models": [policy], "after": [f"advantage_{policy}"]}
        stages += [
            {"name": f"rollout_{policy}", "run": "Rollout", "models": [policy], "group": "rollout"},
            {"name": f"reward_{policy}", "run": "Reward", "after": [f"rollout_{policy}"], "rewards": [reward],
             "group": "rollout"},
            {"name": f"advantage_{policy}", "run": "Advantage", "after": [f"reward_{policy}"], **of},
            {"name": f"update_{policy}", **update, **of},
        ]  # fmt: skip
    crash = {"name": "crash", "run": "crash:once", "after": ["rollout_left"], "reads": ["response_ids"]}
    stages.insert(2, crash | {"writes": ["style"], "group": "train"})
    stages[3]["after"].append("crash")
    reward = "rljob_worker.tests.fault_injection:reward"
    return {
        "models": [{"name": name, "path": str(tiny / "model")} for name in ("left", "right")],
        "rewards": [{"name": "varied", "run": reward}, {"name": "plain", "run": reward, "weight": -1.0}],
        "algorithm": GRPO | {"kl": {"coefficient": 0.0}},
        "dag": {"stages": stages},
        "dataBuffer": {"memory": "256Mi", "deadlineSeconds": int(TEST_TIMEOUT_SECONDS)},
    }


def with_team(tiny: Path, folder: Path) -> dict[str, Any]:
    """Two policies that play one conversation in a group of their own, and are scored and trained each in a group of
    its own."""
    agents = [{"name": "solver", "policy": "left"}, {"name": "checker", "policy": "right"}]
    stages = [
        {"name": "rollout", "run": "Rollout", "models": ["left", "right"], "group": "rollout"},
        {"name": "reward", "run": "Reward", "after": ["rollout"], "group": "rollout"},
        {"name": "crash", "run": "crash:once", "after": ["rollout"], "reads": ["response_ids"], "writes": ["style"],
         "group": "train"},
        {"name": "advantage", "run": "Advantage", "after": ["reward", "crash"], "group": "train"},
    ]  # fmt: skip
    for policy, group in (("left", "train"), ("right", "other")):
        before, reference = f"old_{policy}", f"reference_{policy}"
        update = {"run": "UpdatePolicy", "models": [policy], "after": ["advantage", before, reference]}
        stages += [
            {"name": before, "run": "LogProbs", "models": [policy], "after": ["rollout"], "group": group},
            {"name": reference, "run": "LogProbs", "models": [reference], "after": ["rollout"], "group": group},
            {"name": f"update_{policy}", "group": group, "balance": "Tokens", **update},
        ]
    model = shutil.copytree(tiny / "model", folder / "model")
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %} = ")
    conversation = {"agents": agents, "rounds": 1}
    return {
        "models": [{"name": name, "path": str(model)} for name in ("left", "right")],
        "workerGroups": [{"name": "rollout", "accelerator": CPU}]
        + [{"name": name, "accelerator": CPU} for name in ("train", "other")],
        "rollout": {"maxResponseTokens": 12, "maxStaleness": 1, "conversation": conversation},
        "algorithm": GRPO | {"updateEpochs": 2, "kl": {"coefficient": 0.01}},
        "dag": {"stages": stages},
        "dataBuffer": {"memory": "256Mi", "deadlineSeconds": int(TEST_TIMEOUT_SECONDS)},
    }


@pytest.mark.slow
@pytest.mark.parametrize("what", ["warm-up", "policies", "team", "replay", "generator"])
def test_whatever_else_a_job_does_it_goes_on_as_if_it_had_not_been_killed(tiny, tmp_path, what):
    """A critic's warm-up, two policies, a team whose policies are trained in groups of their own, replayed routes of
    experts, a generator that is killed."""
    spec: dict[str, Any] = {}
    if what == "warm-up":
        critic = {"learningRate": 1.0e-3, "warmupSteps": 2}
        spec = {"algorithm": PPO | {"groupSize": 4, "critic": critic}}
    if what == "policies":
        spec = with_policies(tiny)
    if what == "team":
        spec = with_team(tiny, tmp_path)
    if what == "replay":
        training = {"learningRate": 1.0e-3, "precision": "Float32", "routerReplay": "Rollout"}
        spec = {"models": [model_with_experts(tiny, tmp_path / "experts")], "training": training}
    if what == "generator":
        dag = dag_of("GRPO")
        dag["stages"][1]["group"] = "rollout"
        # it waits for the commit of step 2, which would wait for the validation of step 2 after it
        spec = {"dag": dag, "validation": {"maxRows": 8}}
    job = asynchronous_job(tiny, "PPO" if what == "warm-up" else "GRPO", 1, **spec)
    whole = run_in(tmp_path / "whole", job)
    killed = run_in(tmp_path / "killed", job, crashes=True)
    assert "restart 1 of 3, from the checkpoint of step 2" in killed.output
    others = PLAYED if what == "team" else ()
    assert learnt(killed, others) == learnt(whole, others)
    if what == "warm-up":  # steps that change no policy make nothing older
        assert staleness_of(whole) == [(0, 0), (0, 0), (0, 0), (1, 1), (1, 1), (1, 1)]


@pytest.mark.slow
def test_a_run_that_is_stopped_while_leases_are_out_goes_on_as_if_it_had_not_been(tiny, tmp_path):
    job = asynchronous_job(tiny, "DAPO", 2, generators=2, stop={"steps": 40})
    whole = run_in(tmp_path / "whole", job)
    folder = tmp_path / "stopped"
    folder.mkdir()
    (folder / "crash.py").write_text(CRASH)
    (folder / "crashed").touch()
    with live_run(job, folder) as live:
        live.wait_for_step(3)
        live.process.send_signal(signal.SIGINT)
        stopped = live.finished()
    assert stopped.code == ExitCode.STOPPED, stopped.output + stopped.logs
    assert 3 < stopped.metrics[-1]["step"] < 40
    assert learnt(run_in(folder, job)) == learnt(whole)


@pytest.mark.slow
def test_a_run_without_kept_versions_draws_the_steps_in_flight_anew(tiny, tmp_path):
    job = asynchronous_job(tiny, "GRPO", 2, checkpoint={"everySteps": 2, "versions": "Redraw"})
    run = run_in(tmp_path / "killed", job, crashes=True)
    assert not list(run.directory.rglob("version-*"))
    # step 3 and 4 would be drawn with versions 0 and 1, which nobody has any more
    assert staleness_of(run) == [(0, 0), (1, 1), (0, 0), (1, 1), (2, 2), (2, 2)]


@pytest.mark.slow
def test_only_tokens_of_older_weights_are_corrected_and_each_age_is_reported(tiny, tmp_path):
    correction = {"method": "TruncatedImportance", "upper": 2, "staleOnly": True}
    job = asynchronous_job(tiny, "GRPO", 1, algorithm=GRPO | {"correction": correction}, dag=None)
    _, *steps = run_in(tmp_path, job).metrics
    ages = [sorted(name for name in step if name.startswith("mismatch/k3/age_")) for step in steps]
    assert ages == [["mismatch/k3/age_0"], *[["mismatch/k3/age_1"]] * (NUM_STEPS - 1)]
    # the first step is drawn with the weights that it trains: what rounding makes is left as it is
    assert steps[0]["mismatch/weight"] == 1.0
    assert steps[0]["mismatch/k3/age_0"] < 1e-6
    assert all(step["mismatch/k3/age_1"] > 10 * steps[0]["mismatch/k3/age_0"] for step in steps[1:])
    assert all(step["mismatch/weight"] != 1.0 for step in steps[1:])
