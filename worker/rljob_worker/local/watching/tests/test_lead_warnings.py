"""Warnings of the lead that reach the console."""

from rljob_worker.local.watching.lead_warnings import LeadWarnings

AT = "2026-11-22 17:00:00,000"
PASSED_OVER = f"{AT} WARNING rljob_worker.checkpoint.restore: passing over the checkpoint of step 2\n"
TRACKER = (
    f"{AT} WARNING rljob_worker.metrics.trackers.background: WandB cannot be opened, and is tried again: no account\n"
)
REWARD = f"{AT} WARNING rljob_worker.rewards.running.pool: row 3 took longer than 5 s\n"


def test_after_the_start_only_what_trackers_miss_is_told(tmp_path):
    log = tmp_path / "lead.log"
    log.write_text(PASSED_OVER + f"{AT} WARNING transformers: slow\n")
    warnings = LeadWarnings(log)
    assert warnings.news() == ["passing over the checkpoint of step 2"]
    with log.open("a") as file:
        file.write(REWARD + TRACKER)
    assert warnings.news() == ["WandB cannot be opened, and is tried again: no account"]
    assert warnings.news() == []
