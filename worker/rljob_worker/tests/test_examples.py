"""Examples run as a user runs them, for two steps, on a model that knows nothing: one, and in the slow tier all. Every
example is valid beside that model."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.cli.validate import verdict_on
from rljob_worker.embodied.mlp_files import write_mlp_policy
from rljob_worker.tests.jobs import Run
from rljob_worker.tests.session_root import job_environment
from rljob_worker.tiny.graders import make_graders
from rljob_worker.tiny.make import make_model
from rljob_worker.tiny.recipe import Pretraining, conversations, quick, shapes

EXAMPLES = Path(__file__).parents[3] / "examples"
RUNNABLE = [
    "arithmetic-grpo",
    "arithmetic-ppo",
    "arithmetic-disaggregated",
    "arithmetic-async",
    "arithmetic-long-tail",
    "arithmetic-dapo",
    "arithmetic-gspo",
    "arithmetic-cpgd",
    "arithmetic-drgrpo",
    "arithmetic-rloo",
    "arithmetic-reinforce-plus-plus",
    "arithmetic-mixture",
    "custom-stage",
    "custom-filter",
    "custom-algorithm",
    "arithmetic-reward-model",
    "arithmetic-judge",
    "arithmetic-calculator",
    "guessing-game",
    "reach-state",
    "arithmetic-team",
    "shapes-counting",
]
VALID = [*RUNNABLE, "arithmetic-elastic"]
TALKING = {"arithmetic-calculator": "Calculator", "guessing-game": "GuessingGame", "arithmetic-team": "Team"}
"""Examples whose models have read conversations."""
DEFAULT_TIER = "arithmetic-grpo"
"""The others differ from it in the algorithm, in worker groups, in a stage or in a reward."""
HALVES = ("training.miniBatchRows=32",)
"""Half of the 64 rows that the test makes of a step's 256."""
VARIED = ('rewards=[{name: varied, run: "rljob_worker.tests.fault_injection:reward"}]',)
"""A model that knows nothing is never right, and equal rewards teach nothing."""
CHANGED = {
    "arithmetic-grpo": VARIED,
    "arithmetic-ppo": VARIED,
    "arithmetic-drgrpo": VARIED,
    "arithmetic-long-tail": VARIED,
    "arithmetic-calculator": VARIED,
    "guessing-game": VARIED,
    "arithmetic-team": VARIED,
    # a report has 64 samples: with groups of 16 the last ones lack what rewards say of them
    "reach-state": ("algorithm.groupSize=8",),
    "shapes-counting": VARIED,
    "arithmetic-dapo": HALVES + VARIED,
    "arithmetic-gspo": HALVES + VARIED,
    "arithmetic-cpgd": HALVES + VARIED,
    "custom-filter": VARIED,
    "custom-algorithm": HALVES,
}


MADE = ("arithmetic", "arithmetic-long", "reach-state", *TALKING, "shapes-counting")


@pytest.fixture(scope="module")
def examples(tiny, tmp_path_factory):
    """A copy of the examples with the small model where the quick start puts the real one."""
    folder = tmp_path_factory.mktemp("user") / "examples"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns(*MADE, "__pycache__"))
    for name in ("arithmetic", "arithmetic-long"):
        shutil.copytree(tiny, folder / name)
    for name, subject in TALKING.items():
        make_model(conversations(quick(), subject), folder / name)
    write_mlp_policy(folder / "reach-state" / "model", state_size=4, dimensions=2, chunk=4, bins=9)
    make_model(shapes(quick()), folder / "shapes-counting")
    make_graders(tiny / "model", folder / "arithmetic", 0, 1, Pretraining(steps=2, rows_per_step=8))
    return folder


def run_example(folder, name, *more, runs="runs"):
    return run_with(folder, name, *overrides_of(name), *more, runs=runs)


def run_with(folder, name, *overrides, runs="runs"):
    arguments = [part for override in overrides for part in ("--set", override)]
    arguments += ["--runs-dir", str(folder / runs)]
    command = [sys.executable, "-m", "rljob_worker.cli", "run", str(folder / f"{name}.yaml"), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=5 * TEST_TIMEOUT_SECONDS, env=job_environment()
    )
    return Run(done.returncode, done.stdout + done.stderr, folder / runs / name)


def overrides_of(name):
    return ("stop.steps=2", "data.batchSize=8", *CHANGED.get(name, ()))


@pytest.mark.parametrize("name", VALID)
def test_an_example_is_valid(examples, name):
    verdict = verdict_on(examples / f"{name}.yaml", overrides_of(name))
    assert (verdict.job, verdict.problems, verdict.unseen, verdict.lacking) == (name, (), (), ())


@pytest.mark.parametrize(
    "name", [name if name == DEFAULT_TIER else pytest.param(name, marks=pytest.mark.slow) for name in RUNNABLE]
)
def test_an_example_runs(examples, name):
    run = run_example(examples, name)
    assert run.code == 0, run.output + run.logs
    steps = run.metrics
    assert [step["step"] for step in steps] == [0, 1, 2]
    assert [("validation/accuracy" in step) for step in steps] == [True, False, True]
    assert all(0 <= step["time/overhead_fraction"] <= 1 for step in steps[1:])
    assert {"plan.json", "metrics.jsonl", "samples.jsonl", "checkpoints", "tensorboard"} <= {
        path.name for path in run.directory.iterdir()
    }
    sample = json.loads((run.directory / "samples.jsonl").read_text().splitlines()[-1])
    assert {"step", "row", "prompt", "response", "reward"} <= set(sample)
    check_what_it_shows[name](steps)


def policy_learns(steps):
    assert all(step["update/gradient_norm"] > 0 for step in steps[1:])
    assert steps[2]["policy/ratio_max"] == pytest.approx(1.0)
    # the update's own forward pass, with the weights that drew, agrees with the engine that drew
    assert steps[2]["mismatch/ratio_max"] == pytest.approx(1.0, abs=1e-3)
    assert steps[2]["mismatch/probs_diff_max"] < 1e-4
    assert steps[2]["kl/old"] == pytest.approx(0.0, abs=1e-9)


def two_updates_learn(steps):
    assert all(step["update/gradient_norm"] > 0 for step in steps[1:])
    assert "time/old_log_probs_seconds" in steps[2] and "reward/zero_variance_groups" in steps[2]
    assert steps[2]["mismatch/ratio_max"] == pytest.approx(1.0, abs=1e-3) != steps[2]["policy/ratio_max"]


def batches_are_full(steps):
    assert all(step["sampling/groups_drawn"] >= 8 and step["reward/zero_variance_groups"] == 0 for step in steps[1:])


def own_parts_are_used(steps):
    assert "policy/far_fraction" in steps[1] and "policy/clip_fraction" not in steps[1]


def penalty_is_in_the_reward(steps):
    assert "kl/coefficient" in steps[2] and "time/old_log_probs_seconds" in steps[2]


def critic_learns(steps):
    assert all(step["loss/value"] > 0 and step["critic/update/gradient_norm"] > 0 for step in steps[1:])


def rows_and_weights_cross(steps):
    crossing = ("data/bytes_rollout->update", "data/bytes_reward->advantage", "data/bytes_weights/actor")
    assert all(steps[2][name] > 0 for name in crossing)


def generation_is_ahead(steps):
    assert [step["staleness/max"] for step in steps[1:]] == [0, 1]
    assert all(step["mismatch/weight"] > 0 for step in steps[1:])


def rows_are_carried(steps):
    assert all(step["partial/rows_unfinished"] > 0 == step["partial/rows_cut_off"] for step in steps[1:])
    assert [step["partial/age_max"] for step in steps[1:]] == [0, 1]
    assert all(step["mismatch/weight"] > 0 for step in steps[1:])


def both_sources_are_drawn_from(steps):
    names = {"training/accuracy/arithmetic", "training/accuracy/sums"}
    assert all(names <= set(step) for step in steps[1:])


def branches_are_joined(steps):
    shown = {"stage/working/working_reward", "stage/brevity/brevity_reward", "stage/total/total_rewards"}
    assert shown <= set(steps[1])


def a_part_is_kept(steps):
    assert all(0 < step["stage/learnable/kept"] <= 1 and step["update/gradient_norm"] > 0 for step in steps[1:])


def rewards_come_from_a_service(steps):
    for step in steps[1:]:
        assert step["service/grader/requests_total"] > 0 and step["service/grader/errors_total"] == 0
        assert step["service/grader/seconds"] > 0 and step["reward/convincing/truncated"] == 0
        assert 0 <= step["reward/convincing"] <= 1
        assert step["reward/mean"] == pytest.approx(step["reward/convincing"])  # the rule only watches


def tools_may_be_called(steps):
    assert all(
        1 <= step["conversation/turns_mean"] <= 2 and "conversation/world/tool_calls" in step for step in steps[1:]
    )
    assert all(step["conversation/failed_fraction"] == 0 for step in steps[1:])


def environments_are_played(steps):
    assert all(1 <= step["conversation/turns_max"] <= 4 for step in steps[1:])
    # a reset and a step for each turn that ended by itself
    assert all(step["conversation/tool_calls"] >= 1 and step["conversation/failed_fraction"] == 0 for step in steps[1:])


def episodes_are_played(steps):
    assert all(0 <= step["simulator/success"] <= 1 and step["conversation/turns_max"] <= 2 for step in steps[1:])
    assert {"upper-left", "upper-right", "lower-left", "lower-right"} <= {
        name.rpartition("/")[2] for name in steps[2] if name.startswith("validation/success_standard_error/")
    }
    assert all(step["update/gradient_norm"] > 0 and step["conversation/failed_fraction"] == 0 for step in steps[1:])


def both_policies_of_a_team_learn(steps):
    for step in steps[1:]:
        assert {step[f"conversation/agent/{name}/turns"] for name in ("solver", "checker")} == {1}
        for policy in ("solver", "checker"):
            assert step[f"policy/{policy}/update/gradient_norm"] > 0
            assert f"policy/{policy}/critic/update/gradient_norm" in step


def pictures_are_seen(steps):
    policy_learns(steps)
    assert {"validation/accuracy/shapes", "validation/accuracy/exchanged"} <= set(steps[2])


check_what_it_shows = {
    "arithmetic-team": both_policies_of_a_team_learn,
    "shapes-counting": pictures_are_seen,
    "arithmetic-calculator": tools_may_be_called,
    "guessing-game": environments_are_played,
    "reach-state": episodes_are_played,
    "arithmetic-grpo": policy_learns,
    "arithmetic-ppo": critic_learns,
    "arithmetic-disaggregated": rows_and_weights_cross,
    "arithmetic-async": generation_is_ahead,
    "arithmetic-long-tail": rows_are_carried,
    "arithmetic-dapo": batches_are_full,
    "arithmetic-gspo": two_updates_learn,
    "arithmetic-cpgd": two_updates_learn,
    "arithmetic-drgrpo": policy_learns,
    "arithmetic-rloo": penalty_is_in_the_reward,
    "arithmetic-reinforce-plus-plus": penalty_is_in_the_reward,
    "arithmetic-mixture": both_sources_are_drawn_from,
    "custom-stage": branches_are_joined,
    "custom-filter": a_part_is_kept,
    "custom-algorithm": own_parts_are_used,
    "arithmetic-reward-model": rewards_come_from_a_service,
    "arithmetic-judge": rewards_come_from_a_service,
}


IN_THE_JOBS_PODS = (
    "models=[{name: actor, path: arithmetic/model}, {name: taste, path: arithmetic/reward-model}]",
    "services=[]",
    "rewards=[{name: correct, run: 'rljob_worker.rewards:final_number', column: answer, weight: 0.0}, "
    "{name: convincing, run: RewardModel, model: taste, options: {activation: Sigmoid, maxTokens: 128}}]",
)


@pytest.mark.slow
def test_the_model_of_a_reward_may_share_the_workers(examples):
    served = run_example(examples, "arithmetic-reward-model", runs="served")
    shared = [run_example(examples, "arithmetic-reward-model", *IN_THE_JOBS_PODS, runs=f"own-{n}") for n in (1, 2)]
    assert [run.code for run in (served, *shared)] == [0, 0, 0], shared[0].output + shared[0].logs
    first, again = (learnt(run.metrics) for run in shared)
    assert first == again  # unlike one that is served, whose last digits depend on who asks when
    for step, same in zip(first[1:], learnt(served.metrics)[1:], strict=True):
        assert step["reward/convincing"] == pytest.approx(same["reward/convincing"], abs=1e-3)
        assert step["reward/mean"] == pytest.approx(step["reward/convincing"])  # the rule only watches
        assert step["reward/convincing/truncated"] == 0 and "service/grader/seconds" not in step
    assert "time/reward_model_1_seconds" in shared[0].metrics[1]


@pytest.mark.slow
def test_a_job_learns_the_same_when_its_data_buffers_speak_tls(examples):
    plain = run_example(examples, "arithmetic-disaggregated", runs="plain")
    secret = run_example(examples, "arithmetic-disaggregated", "dataBuffer.tls=true", runs="secret")
    assert (plain.code, secret.code) == (0, 0), secret.output + secret.logs
    assert learnt(secret.metrics) == learnt(plain.metrics)
    assert {path.name for path in secret.directory.iterdir()} == {path.name for path in plain.directory.iterdir()}


def learnt(steps):
    """All that is not a matter of time or of bytes on the way."""
    varies = ("time/", "throughput/", "data/", "memory/", "process/")
    return [{name: value for name, value in step.items() if not name.startswith(varies)} for step in steps]
