"""`rljob report` of runs in folders."""

import json

from rljob_worker.cli.report import write_report
from rljob_worker.rundir.directory import RunNote


def write_run(runs, name, **metrics):
    folder = runs / name
    folder.mkdir(parents=True)
    note = RunNote(name, "Succeeded", 1, 1, restarts=0, started_seconds=1, updated_seconds=2, total_steps=1)
    (folder / "run.json").write_text(note.to_json())
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "time/step_seconds": 1.2, **metrics}) + "\n")


def test_the_report_of_a_disaggregated_run_says_who_waited_for_what(tmp_path, capsys):
    write_run(tmp_path, "colocated")
    trainers = {"time/trainers_idle_seconds": 0.3, "time/trainers_idle_seconds/rows": 0.3}
    write_run(tmp_path, "apart", **trainers)
    page = tmp_path / "both.html"
    assert write_report(["colocated", "apart"], tmp_path, page) == 0
    assert capsys.readouterr().out.splitlines() == [
        "apart: trainers waited 0.30 s of 1.20 s per step for rows (step 1)",
        "NAME       PHASE      time/step_seconds",
        "colocated  Succeeded  1.2",
        "apart      Succeeded  1.2",
        f"wrote {page}",
    ]
    assert page.exists()


def test_the_report_says_how_lengths_are_spread_by_the_limit_of_the_job(tmp_path, capsys):
    """The longest is 5 times the mean. 500 tokens are 8 rounds of 64; without a job the limit is 1024, 16 rounds."""
    spread = {"response_length/mean": 64.0, "response_length/max": 320.0}
    for name in ("limited", "default"):
        write_run(tmp_path, name, **spread)
    (tmp_path / "limited" / "job.yaml").write_text("spec: {rollout: {maxResponseTokens: 500}}")
    write_run(tmp_path, "with", **spread, **{"partial/age_mean": 0.25, "partial/age_max": 2.0})
    assert write_report(["limited", "default", "with"], tmp_path, tmp_path / "all.html") == 0
    limited, default, carried, *_ = capsys.readouterr().out.splitlines()
    assert limited.startswith("limited: responses have 64 tokens in the mean and up to 320: a step")
    assert "{tokensPerRound: 64, maxCarries: 7}" in limited and "for up to 4 steps" in limited
    assert default.startswith("default: ") and "{tokensPerRound: 64, maxCarries: 15}" in default
    assert (
        carried.startswith("with: 0.0 groups with 0.0 unfinished responses go on") and "rollout.partial" not in carried
    )


def test_several_runs_are_compared_by_what_differs_between_their_jobs(tmp_path, capsys):
    write_run(tmp_path, "low", **{"reward/mean": 0.25, "validation/accuracy": 0.5})
    write_run(tmp_path, "high", **{"reward/mean": 0.75})
    for name, rate in (("low", 1e-6), ("high", 1e-5)):
        (tmp_path / name / "job.yaml").write_text(f"spec: {{seed: 7, training: {{learningRate: {rate}}}}}")
    assert write_report(["low", "high"], tmp_path, tmp_path / "both.html") == 0
    assert capsys.readouterr().out.splitlines()[:3] == [
        "NAME  training.learningRate  PHASE      reward/mean  validation/accuracy  time/step_seconds",
        "low   1e-06                  Succeeded  0.25         0.5                  1.2",
        "high  1e-05                  Succeeded  0.75         –                    1.2",
    ]
