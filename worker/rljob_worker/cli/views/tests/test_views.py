"""The live table on a fake terminal, the plain lines, the summary."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from rljob_worker.cli.views.figures import misses_of
from rljob_worker.cli.views.live import LiveView, picture
from rljob_worker.cli.views.plain import PlainView, format_step, summary
from rljob_worker.local.watching.progress import MetricsTail, RunProgress
from rljob_worker.rundir.directory import RunDirectory, RunNote

NOTE = RunNote(
    name="tiny", phase="Running", pid=1, attempt=2, restarts=1, started_seconds=0, updated_seconds=185, total_steps=10
)


STAGES = ("rollout", "update")


def record(step, **more):
    """A step of two seconds whose reward is step / 10."""
    return {
        "step": step, "reward/mean": step / 10, "loss/policy": -0.0012, "kl/reference": 0.002, "policy/entropy": 1.25,
        "policy/clip_fraction": 0.02, "response_length/mean": 34.1, "throughput/tokens_per_second": 1234.0,
        "time/rollout_seconds": 1.5, "time/rollout_wait_seconds": 0.1, "time/forward_seconds": 0.4,
        "time/step_seconds": 2.0, "data/bytes_total": 1.5 * 2**20, **more,
    }  # fmt: skip


def write(directory, *records):
    directory.path.mkdir(parents=True, exist_ok=True)
    with directory.metrics.open("a") as file:
        file.writelines(json.dumps(item) + "\n" for item in records)


def rewrite(directory, *records):
    """As `cut_back` does: a new file in place of the old one."""
    partial = directory.path / "partial"
    partial.write_text("".join(json.dumps(item) + "\n" for item in records))
    partial.replace(directory.metrics)


@pytest.fixture
def directory(tmp_path):
    return RunDirectory(tmp_path / "runs" / "tiny")


def drawn(progress, note=NOTE, width=130):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(picture(note, progress, waited_seconds=0.5))
    return console.file.getvalue()


def test_the_table_has_a_row_per_step_and_one_for_the_step_under_way():
    lines = drawn(
        RunProgress([record(0, **{"validation/accuracy": 0.25}), record(1), record(2)], 10, STAGES)
    ).splitlines()
    assert lines[0].split()[:2] == ["tiny", "Running"]
    assert "step 2/10" in lines[0] and "ETA 16.0s" in lines[0] and "attempt 2, restarts 1" in lines[0]
    titles = ["step", "reward", "validation", "loss", "KL", "entropy", "clip", "length", "tok/s", "time", "data"]
    assert lines[1].split() == titles
    assert lines[2].split() == [
        "0",
        "0",
        "0.25",
        "-0.0012",
        "0.002",
        "1.25",
        "0.02",
        "34.1",
        "1.2k",
        "2.0s",
        "1.5",
        "MiB",
    ]
    assert lines[4].split()[:3] == ["2", "0.2", "–"]
    assert lines[5].split() == ["3", "0.50s"]
    assert lines[6].strip() == "rollout 1.5s · best reward 0.2 at step 2"


def test_the_table_keeps_to_recent_steps():
    progress = RunProgress([record(step) for step in range(1, 101)], 200)
    lines = drawn(progress, replace(NOTE, total_steps=200)).splitlines()
    steps = [line.split()[0] for line in lines[2:15]]
    assert steps == [str(step) for step in range(89, 102)]


def test_before_the_first_step_the_table_says_what_it_waits_for():
    assert "loading models and data" in drawn(RunProgress([], 10), replace(NOTE, phase="Starting"))


def test_a_finished_run_has_no_step_under_way():
    text = drawn(RunProgress([record(10)], 10), replace(NOTE, phase="Succeeded"))
    assert "0.50s" not in text


def titles(progress, width):
    return next(line.split() for line in drawn(progress, width=width).splitlines() if "reward " in line)


def test_a_narrow_terminal_does_without_the_least_needed_columns():
    progress = RunProgress([record(1, **{"validation/accuracy": 0.5})], 10, STAGES)
    every = ["step", "reward", "validation", "loss", "KL", "entropy", "clip", "length", "tok/s", "time", "data"]
    assert titles(progress, 80) == [title for title in every if title != "entropy"]
    assert titles(progress, 45) == ["step", "reward", "validation", "loss", "time"]


def test_a_column_without_figures_is_not_shown():
    progress = RunProgress([{"step": 1, "reward/mean": 0.5, "time/step_seconds": 1.0}], 10)
    assert titles(progress, 130) == ["step", "reward", "time"]


@pytest.mark.parametrize("width", [40, 80, 200])
def test_any_width_is_fine(width):
    text = drawn(RunProgress([record(step) for step in range(20)], 30), width=width)
    assert all(len(line) <= width for line in text.splitlines())


def test_the_live_view_follows_the_file_and_prints_events_above(directory):
    output = io.StringIO()
    console = Console(file=output, width=130, force_terminal=True, color_system=None)
    with LiveView(directory, 10, ("rollout",), console) as view:
        view.note(NOTE)
        write(directory, record(1))
        view.tick()
        view.say("worker-train-0-0: lost [a] peer; restart 1 of 3")
    text = output.getvalue()
    assert "step 1/10" in text
    assert "worker-train-0-0: lost [a] peer; restart 1 of 3" in text


def test_plain_lines_tell_news_only(directory, capsys):
    write(directory, record(1))
    view = PlainView(directory, 10, ("rollout",))
    view.note(NOTE)
    write(directory, record(2), record(3))
    view.tick()
    rewrite(directory, record(1), record(2))
    view.tick()
    write(directory, record(3, **{"reward/mean": 0.9}))
    view.close()
    assert [line.split("  ")[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["tiny: running, attempt 2"],
        ["step 2/10", "reward 0.2"],
        ["step 3/10", "reward 0.3"],
        ["step 3/10", "reward 0.9"],
    ]


def test_plain_lines_tell_what_a_long_start_does_at_5_10_and_20_seconds(directory, capsys):
    seconds = [0.0]
    view = PlainView(directory, 10, (), clock=lambda: seconds[0])
    view.note(replace(NOTE, phase="Starting", doing="tokenizer"))
    for seconds[0] in (4.0, 5.0, 9.0, 12.0, 19.0, 21.0):
        view.tick()
    view.note(replace(NOTE, phase="Starting", doing="models"))
    for seconds[0] in (25.0, 26.0):
        view.tick()
    view.note(replace(NOTE, phase="Running", doing=""))
    seconds[0] = 100.0
    view.tick()
    assert capsys.readouterr().out.splitlines() == [
        "tiny: starting, attempt 2", "  tokenizer ... 5 s so far", "  tokenizer ... 10 s so far",
        "  tokenizer ... 20 s so far", "  models ... 5 s so far", "tiny: running, attempt 2",
    ]  # fmt: skip


def test_a_plain_line_has_every_figure_that_the_step_has():
    first = record(3, **{"validation/accuracy": 0.5})
    assert format_step(first, RunProgress([first], 10, STAGES)) == (
        "step 3/10  reward 0.3  validation 0.5  loss -0.0012  kl 0.002  entropy 1.25  clip 0.02  length 34.1  "
        "tokens/s 1.2k  2.0s (rollout 1.5s)  data 1.5 MiB  eta 14.0s"
    )
    assert format_step({"step": 0, "validation/accuracy": 0.25}, RunProgress([], 10)) == "step 0/10  validation 0.25"


IDLE = {
    "time/trainers_idle_seconds": 0.5, "time/trainers_idle_seconds/rows": 0.5,
    "time/generators_idle_seconds": 1.25, "time/generators_idle_seconds/weights": 1.25,
}  # fmt: skip


def test_the_idle_seconds_of_a_disaggregated_step_are_shown():
    last = record(1, **IDLE)
    assert "2.0s (rollout 1.5s)  idle trainers 0.50s, generators 1.2s  data" in (
        format_step(last, RunProgress([last], 10, STAGES))
    )
    assert "rollout 1.5s · idle trainers 0.50s, generators 1.2s · best" in drawn(RunProgress([last], 10, STAGES))


def test_what_is_carried_on_is_shown_of_each_step_and_at_the_end(directory):
    last = record(1, **{"partial/rows_unfinished": 12.0, "partial/age_mean": 0.5, "partial/age_max": 2.0})
    assert "unfinished 12  data" in format_step(last, RunProgress([last], 10, STAGES))
    assert (
        "  carried     0.0 groups with 12.0 unfinished responses go on after a step; responses of a batch began "
        "0.50 steps before it in the mean and 2 at most (step 1)"
    ) in summary(NOTE, RunProgress([last], 10), directory, [], "").splitlines()


def test_success_of_episodes_is_shown_with_its_standard_error(directory):
    validated = {
        "validation/success": 0.75, "validation/success_standard_error": 0.0541,
        "validation/success/push": 1.0, "validation/success_standard_error/push": 0.0,
        "validation/success/lift": 0.5, "validation/success_standard_error/lift": 0.0884,
    }  # fmt: skip
    assert "  success 0.75 ± 0.054  " in format_step(record(2, **validated), RunProgress([], 10, STAGES))
    assert "success" not in format_step(record(2), RunProgress([], 10, STAGES))
    text = summary(NOTE, RunProgress([record(2, **validated), record(3)], 10), directory, [], "")
    assert "  success     0.75 ± 0.054 (lift 0.5 ± 0.088, push 1 ± 0)" in text


def test_a_torn_line_waits_for_its_end(directory):
    write(directory, record(1))
    with directory.metrics.open("a") as file:
        file.write('{"step": 2, "rew')
    tail = MetricsTail(directory.metrics)
    assert [item["step"] for item in tail.poll()] == [1]
    with directory.metrics.open("a") as file:
        file.write('ard/mean": 0.7}\n')
    assert tail.poll() == [{"step": 2, "reward/mean": 0.7}]
    assert tail.poll() == []


def test_the_summary_says_what_rose_and_where_things_are(directory, monkeypatch):
    monkeypatch.chdir(directory.path.parent.parent if directory.path.parent.exists() else directory.path.anchor)
    # rewards 0.1 .. 1.0 in ten steps: the means of the first and the last five are 0.3 and 0.8
    records = [{"step": 0, "validation/accuracy": 0.2}, *(record(step) for step in range(1, 11))]
    records[-1]["validation/accuracy"] = 0.9
    write(directory, *records)
    monkeypatch.chdir(directory.path.parent.parent)
    note = replace(NOTE, phase="Succeeded", exit_code=0)
    assert summary(note, RunProgress(records, 10), directory, [8, 10], "rljob run job.yaml").splitlines() == [
        "tiny: succeeded after 10 of 10 steps, in 3m05s",
        "  reward      0.3 -> 0.8 (mean of 5 steps), best 1 at step 10",
        "  validation  0.2 -> 0.9, best 0.9 at step 10",
        "  metrics     runs/tiny/metrics.jsonl",
        "  checkpoints runs/tiny/checkpoints (steps 8, 10)",
        "  export      rljob export runs/tiny tiny-model",
    ]


def test_the_summary_of_a_disaggregated_run_says_who_waited(directory):
    lines = summary(NOTE, RunProgress([record(1, **IDLE)], 10), directory, [], "").splitlines()
    assert (
        "  idle        trainers waited 0.50 s of 2.00 s per step for rows; "
        "generators waited 1.25 s of 2.00 s per step for weights (step 1)"
    ) in lines


def test_the_summary_of_a_stopped_run_says_how_to_go_on(directory):
    text = summary(replace(NOTE, phase="Stopped"), RunProgress([], 10), directory, [], "rljob run job.yaml")
    assert text.splitlines()[-1] == "  go on       rljob run job.yaml"


def test_what_rewards_missed_is_reported_per_reward(directory, capsys):
    first = {"step": 1, "reward/judge/timeouts_total": 2.0, "reward/judge/errors_total": 1.0}
    second = {"step": 2, "reward/judge/retries_total": 4.0, "reward/style": 0.5, "reward/timeouts_total": 2.0}
    assert misses_of([first, second]) == ["reward judge: 2 timed out, 1 failed, and count 0; 4 called again"]
    silent = {"step": 1, "reward/style/none_fraction": 1.0, "reward/brief/none_fraction": 0.5}
    assert misses_of([silent]) == ["reward style: None for every row, which counts 0"]
    assert misses_of([silent, silent | {"reward/style/none_fraction": 0.0}]) == []
    view = PlainView(directory, 2, ())
    write(directory, first)
    view.tick()
    assert "warning: step 1: reward judge: 2 timed out, 1 failed, and count 0\n" in capsys.readouterr().out
