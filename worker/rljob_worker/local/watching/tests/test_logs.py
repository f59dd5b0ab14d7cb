"""Lines of logs that reach the console: on start phases, and warnings of the lead."""

import logging

from rljob_worker.local.watching.logs import LeadWarnings, StartLines, worker_logs
from rljob_worker.process.start_phases import phase

AT = "2026-11-22 17:00:00,000 "
PASSED_OVER = f"{AT}WARNING rljob_worker.checkpoint.restore: passing over the checkpoint of step 2\n"
TRACKER = (
    f"{AT}WARNING rljob_worker.metrics.trackers.background: WandB cannot be opened, and is tried again: no account\n"
)
REWARD = f"{AT}WARNING rljob_worker.rewards.running.pool: row 3 took longer than 5 s\n"


def test_a_phase_tells_of_its_begin_and_of_what_it_found_and_took(caplog):
    ticks = iter([10.0, 12.25])
    with caplog.at_level(logging.INFO, "rljob.start"), phase("data", lambda: next(ticks)) as reported:
        reported.found = "12 rows"
    assert [record.getMessage() for record in caplog.records] == ["data ...", "data: 12 rows, in 2.2 s"]


def test_lines_are_told_once_and_whole(tmp_path):
    lines = StartLines(worker_logs(tmp_path, ["train"]))
    assert lines.news() == []
    log = tmp_path / "worker-train-0-0.log"
    log.write_text(f"{AT}INFO rljob.start: data ...\n{AT}INFO other: no\n{AT}INFO rljob.start: data: 12 ro")
    assert lines.news() == ["data ..."]
    with log.open("a") as file:
        file.write("ws, in 2.2 s\nTraceback\n")
    assert lines.news() == ["data: 12 rows, in 2.2 s"] and lines.news() == []


def test_of_several_groups_each_is_named(tmp_path):
    for group in ("rollout", "train"):
        (tmp_path / f"worker-{group}-0-0.log").write_text(f"{AT}INFO rljob.start: tokenizer: in 0.1 s\n")
    news = StartLines(worker_logs(tmp_path, ["rollout", "train"])).news()
    assert news == ["rollout: tokenizer: in 0.1 s", "train: tokenizer: in 0.1 s"]


def test_after_the_start_only_what_trackers_miss_is_told(tmp_path):
    log = tmp_path / "lead.log"
    log.write_text(PASSED_OVER + f"{AT}WARNING transformers: slow\n")
    warnings = LeadWarnings(log)
    assert warnings.news() == ["passing over the checkpoint of step 2"]
    with log.open("a") as file:
        file.write(REWARD + TRACKER)
    assert warnings.news() == ["WandB cannot be opened, and is tried again: no account"]
    assert warnings.news() == []
