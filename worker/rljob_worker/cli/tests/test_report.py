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
        f"wrote {page}",
    ]
    assert page.exists()
