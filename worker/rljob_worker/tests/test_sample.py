"""Dynamic sampling in whole jobs: what is drawn, kept, carried on and said, with rewards whose fate is in the ordinal.

Of four ordinals the first and last are kept, the second is all right, the third all wrong; the model knows nothing and
never ends, so that wrong responses are cut off. What a batch holds is seen in its rewards: ordinal + member / 10.
"""

import json

import pytest

from rljob_worker.tests.jobs import DISAGGREGATED, PPO, make_job, run_job
from rljob_worker.tests.metrics import without_times
from rljob_worker.tests.test_resume import checkpoint_digest

STAGES = '''
import json, os, signal
from pathlib import Path
from rljob_worker.tests.fault_injection import await_commit

def reward(row):
    ordinal, member = divmod(row["row_id"], 4)
    return {1: 1.0, 2: 0.0}.get(ordinal % 4, ordinal + member / 10)

def same(row):
    return 0.5 if row["row_id"] % 8 < 4 else 0.0

def note(batch, context):
    """Writes down what this rank has; kills its worker in step 3 the first time, if `crash` is there."""
    seen = {"step": context.step, "rank": context.dp_rank, "groups": batch.group_ids[::4].tolist(),
            "ordinals": batch["rewards"].values[::4].astype(int).tolist(),
            "versions": batch["policy_version"].values[::4].tolist()}
    with Path(__file__).with_name("seen.jsonl").open("a") as file:
        file.write(json.dumps(seen) + "\\n")
    crash = Path(__file__).with_name("crash")
    if context.step == 3 and crash.exists():
        crash.unlink(missing_ok=True)
        await_commit(2)
        os.kill(os.getpid(), signal.SIGKILL)
    return {"noted": [0.0] * len(batch)}
'''
DAPO = {"name": "DAPO", "groupSize": 4, "sampling": {"oversampling": 1.5}}
WARM_UP = PPO | {
    "groupSize": 4,
    "sampling": {"dynamic": True, "oversampling": 2.5},
    "critic": {"learningRate": 1.0e-3, "warmupSteps": 2},
}
FIGURES = ("rounds", "groups_drawn", "groups_all_right", "groups_overlong", "groups_carried_in", "groups_carried_on")


def dag_of(algorithm, sampling, training):
    """The algorithm's own pipeline, with a stage that takes notes."""
    critic = algorithm["name"] == "PPO"
    stages = [
        {"name": "sample", "run": "Sample", "models": ["actor"], "group": sampling},
        {
            "name": "note",
            "run": "fates:note",
            "after": ["sample"],
            "reads": ["rewards", "policy_version"],
            "writes": ["noted"],
            "group": training,
        },
        {"name": "advantage", "run": "Advantage", "after": ["sample", "note"], "group": training},
        {"name": "update", "run": "UpdatePolicy", "models": ["actor"], "after": ["advantage"], "balance": "Tokens"},
    ]
    if critic:
        stages[2]["after"] += ["values"]
        stages[3]["after"] += ["reference"]
        stages += [
            {"name": "reference", "run": "LogProbs", "models": ["reference"], "after": ["sample"]},
            {"name": "values", "run": "Values", "models": ["critic"], "after": ["sample"]},
            {"name": "update_critic", "run": "UpdateCritic", "models": ["critic"], "after": ["advantage"]},
        ]
    return {"stages": stages}


def sampling_job(tiny, folder, algorithm, *, split=False, reward="reward", **spec):
    folder.mkdir(exist_ok=True)
    (folder / "fates.py").write_text(STAGES)
    dag = dag_of(algorithm, "rollout" if split else "train", "train")
    groups = {"workerGroups": DISAGGREGATED} if split else {}
    rewards = [{"name": "fate", "run": f"fates:{reward}"}]
    return make_job(tiny, rewards=rewards, algorithm=algorithm, dag=dag, **groups, **spec)


def seen_in(folder):
    """Per step: (group, ordinal) of every rank in turn, and the policy versions of its groups."""
    steps = {}
    for line in sorted((folder / "seen.jsonl").read_text().splitlines(), key=lambda line: json.loads(line)["rank"]):
        seen = json.loads(line)
        pairs, versions = steps.setdefault(seen["step"], ([], set()))
        pairs.append(list(zip(seen["groups"], seen["ordinals"], strict=True)))
        versions.update(seen["versions"])
    return steps


def figures(step):
    return [int(step[f"sampling/{name}"]) for name in FIGURES]


@pytest.mark.slow
@pytest.mark.parametrize("split", [False, True], ids=["colocated", "disaggregated"])
def test_a_batch_is_filled_in_rounds_and_dealt_out_evenly(tiny, tmp_path, split):
    training = {"learningRate": 1.0e-3, "precision": "Float32", "miniBatchRows": 8}
    run = run_job(sampling_job(tiny, tmp_path, DAPO, split=split, training=training), tmp_path)
    assert run.code == 0, run.output + run.logs
    # 4 x 1.5 = 6 are drawn, 0 3 4 kept; then 2 for the one that is missing, of which 7 is kept
    assert figures(run.metrics[1]) == [2, 8, 2, 2, 0, 0]
    assert run.metrics[1]["sampling/acceptance"] == 0.5
    seen = seen_in(tmp_path)
    assert seen[1] == ([[(0, 0), (1, 3)], [(2, 4), (3, 7)]], {0})
    assert seen[2] == ([[(4, 8), (5, 11)], [(6, 12), (7, 15)]], {1})
    assert all(step["update/gradient_norm"] > 0 for step in run.metrics[1:])
    # all rows drawn: ordinals 0 3 4 7 with 0.15 on average above the ordinal, and four groups of 1 or 0
    assert run.metrics[1]["reward/mean"] == pytest.approx((14 + 4 * 0.15 + 2) / 8)


@pytest.mark.slow
def test_surplus_is_carried_on_while_only_the_critic_learns(tiny, tmp_path):
    run = run_job(sampling_job(tiny, tmp_path, WARM_UP, split=True, stop={"steps": 4}), tmp_path)
    assert run.code == 0, run.output + run.logs
    # 4 x 2.5 = 10 are drawn: 0 3 4 7 8; with 8 carried on, 3 x 2.5 -> 8 are drawn: 11 12 15 16; and so on
    assert [figures(step)[1:2] + figures(step)[4:] for step in run.metrics[1:]] == [
        [10, 0, 1],
        [8, 1, 1],
        [8, 1, 0],  # the policy learns in step 3: what is too much in it is of the old policy
        [10, 0, 0],
    ]
    assert [step["sampling/groups_surplus"] for step in run.metrics[1:]] == [0, 0, 1, 1]
    ordinals = {
        step: [ordinal for rank in pairs for _, ordinal in rank] for step, (pairs, _) in seen_in(tmp_path).items()
    }
    assert ordinals == {1: [0, 3, 4, 7], 2: [8, 11, 12, 15], 3: [16, 19, 20, 23], 4: [27, 28, 31, 32]}
    assert [versions for _, versions in seen_in(tmp_path).values()] == [{0}, {0}, {0}, {3}]


@pytest.mark.slow
def test_rows_that_two_ranks_carried_on_are_used_by_one(tiny, tmp_path):
    sampling = {"dynamic": True, "oversampling": 8.0}
    algorithm = WARM_UP | {"sampling": sampling, "critic": {"learningRate": 1.0e-3, "warmupSteps": 3}}
    job = sampling_job(tiny, tmp_path, algorithm, stop={"steps": 4}, failurePolicy={"maxRestarts": 0})
    (tmp_path / "crash").touch()
    killed = run_job(job, tmp_path)
    assert "killed by signal 9" in killed.output, killed.output + killed.logs
    # 4 x 8 = 32 are drawn, the first 16 by rank 0, and two of each four are kept: enough for four steps
    assert killed.metrics[2]["sampling/groups_carried_on"] == 8
    (tmp_path / "seen.jsonl").unlink()
    resumed = run_job(job, tmp_path, "--set", "workerGroups.0.accelerator.count=1")
    assert resumed.code == 0, resumed.output + resumed.logs
    assert [figures(step)[:2] for step in resumed.metrics[3:]] == [[0, 0], [0, 0]], "nothing had to be drawn"
    # what is left was drawn and carried on by rank 1, which is gone
    assert seen_in(tmp_path) == {
        3: ([[(8, 16), (9, 19), (10, 20), (11, 23)]], {0}),
        4: ([[(12, 24), (13, 27), (14, 28), (15, 31)]], {0}),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm, split",
    [(DAPO, False), (DAPO, True), (WARM_UP | {"critic": {"warmupSteps": 3}}, False)],
    ids=["colocated", "disaggregated", "with-rows-carried-on"],
)
def test_a_killed_run_samples_on_bit_for_bit(tiny, tmp_path, algorithm, split):
    """Where generation is apart, two pods take leases, in each run as it happens: only who has which rows differs."""
    runs = {}
    for name in ("whole", "killed"):
        job = sampling_job(tiny, tmp_path / name, algorithm, split=split, stop={"steps": 4})
        if split:
            job["spec"]["workerGroups"] = [DISAGGREGATED[0] | {"replicas": 2}, DISAGGREGATED[1]]
        if name == "killed":
            (tmp_path / name / "crash").touch()
        runs[name] = run_job(job, tmp_path / name)
        assert runs[name].code == 0, runs[name].output + runs[name].logs
    assert "restart 1 of 3, from the checkpoint of step 2" in runs["killed"].output
    assert checkpoint_digest(runs["killed"].directory) == checkpoint_digest(runs["whole"].directory)
    placed = ["data/"] if split else []
    assert without_times(runs["killed"].metrics, *placed) == without_times(runs["whole"].metrics, *placed)
    samples = [(run.directory / "samples.jsonl").read_text().splitlines() for run in runs.values()]
    assert sorted(samples[0]) == sorted(samples[1]) if split else samples[0] == samples[1]


@pytest.mark.slow
def test_remax_compares_with_the_greedy_response(tiny, tmp_path):
    algorithm = {"name": "ReMax", "groupSize": 2, "kl": {"coefficient": 0.0}}
    run = run_job(make_job(tiny, algorithm=algorithm), tmp_path)
    assert run.code == 0, run.output + run.logs
    step = run.metrics[1]
    assert 0 < step["reward/baseline"] < 1 and step["reward/baseline"] != step["reward/mean"]
    assert step["update/gradient_norm"] > 0
    # the greedy responses are not rows of the batch: 4 prompts x 2 responses of at most 12 tokens
    assert step["tokens/response_total"] <= 4 * 2 * 12 and step["sampling/groups_drawn"] == 4


@pytest.mark.slow
def test_pf_ppo_learns_from_rows_as_often_as_it_drew_them(tiny, tmp_path):
    algorithm = {"name": "ReinforcePlusPlus", "groupSize": 4, "kl": {"coefficient": 0.0}}
    resampling = {"resampling": {"method": "PFPPO", "weighting": "MaxMin"}}
    job = sampling_job(tiny, tmp_path, algorithm | {"sampling": resampling})
    run = run_job(job, tmp_path)
    assert run.code == 0, run.output + run.logs
    # rewards are ordinal + member / 10 except for groups of 1.0 and 0.0: the best is row 15 alone, the worst are row 0
    # and the 4 of group 2, so at most 6 of 16 rows are drawn
    assert 1 / 16 <= run.metrics[1]["sampling/rows_drawn_fraction"] <= 6 / 16
    assert run.metrics[1]["update/gradient_norm"] > 0


@pytest.mark.slow
def test_a_batch_that_can_never_fill_stops_the_job_and_says_why(tiny, tmp_path):
    algorithm = DAPO | {"sampling": {"maxRounds": 3, "oversampling": 2.0}}
    run = run_job(sampling_job(tiny, tmp_path, algorithm, reward="same"), tmp_path)
    assert run.code == 65
    # three rounds of 8; even ordinals are 0.5 and odd ones 0; a model that knows nothing is cut off each time
    assert "step 1 needs 4 groups whose rewards vary and has 0 after 3 rounds" in run.output, run.output
    assert "of 24 groups drawn 24 were dropped" in run.output
