"""Timelines as they are drawn."""

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.loading.load import parse_job
from rljob_api.planning.costs.timeline import StageRun, with_staleness
from rljob_api.planning.planner import plan
from rljob_worker.cli.plan.show import timeline_view
from rljob_worker.cli.plan.timeline_view import axis, blocks, format_number, letters_of, timeline_json
from rljob_worker.tests.documents import plan_of

CHECKOUT = Path(__file__).parents[5]
EXAMPLE = "examples/arithmetic-async.yaml"
APART = plan_of(groups=[("train", 1, 1), ("rollout", 1, 1)])
TOGETHER = plan_of(groups=[("train", 1, 1)])
LETTERS = {"rollout": "r", "reward": "e", "update": "u"}


def drawn(job_plan, *times, staleness=0, width=100):
    return timeline_view(with_staleness(job_plan, staleness), times).lines(width)


def run(stage, start, end, step=7):
    return StageRun("train", stage, step, Fraction(start), Fraction(end))


def test_groups_that_wait_for_each_other():
    # 60 columns: names of 7, two gaps of 2 and 9 for the share leave 40 cells for two steps of 20 s
    assert drawn(APART, "rollout=10,update=10", width=60) == [
        "         0 s       10        20        30",
        "train              [update 3]          [update 4]   50% idle",
        "rollout  [===r3===]          [===r4===]             50% idle",
        "         r rollout",
        "",
        "A step takes 20 s.",
        "Times given: rollout 10 s, update 10 s.",
        "Without a time, and so taken to need 0 s: reference, reward,",
        "advantage.",
    ]


def test_groups_that_wait_for_nothing():
    # S = 1: 40 cells for two steps of 10 s, training a step behind
    every = ",reward=0,reference=0,advantage=0"
    assert drawn(APART, "rollout=10,update=10" + every, staleness=1, width=60) == [
        "         0 s       5         10        15",
        "train    [=====update 4=====][=====update 5=====]    0% idle",
        "rollout  [====rollout 5=====][====rollout 6=====]    0% idle",
        "",
        "A step takes 10 s with rollout.maxStaleness 1, and 20 s with",
        "0: 2.00 times as many steps in the same time.",
        "Times given: rollout 10 s, update 10 s, reward 0 s,",
        "reference 0 s, advantage 0 s.",
    ]


def test_what_gains_nothing_says_so():
    assert "A step takes 9 s with rollout.maxStaleness 1, and 9 s with 0: nothing is gained." in drawn(
        APART, "update=9", staleness=1
    )


def test_a_group_that_does_both_goes_step_by_step_with_a_weight_sync():
    # 60 cells for two steps of 60 s: a cell is 2 s. Of weights w and e are the letters of reward and reference
    lines = drawn(TOGETHER, "rollout=30", "update=20,weights=10", width=78)
    assert lines[:3] == [
        "       0 s       20        40        60        80        100",
        "train  [==rollout 3==][update 3][i3=][==rollout 4==][update 4][i4=]    0% idle",
        "       i weights",
    ]
    assert lines[4:6] == ["A step takes 60 s.", "Times given: rollout 30 s, update 20 s, weights 10 s."]


def test_the_page_of_planning_shows_what_is_drawn():
    job = parse_job((CHECKOUT / EXAMPLE).read_text())
    times = "rollout=60,reward=2,old_log_probs=9,update=30,weights=3"
    text = "\n".join(line.rstrip() for line in drawn(plan(job), times, staleness=1))
    page = (CHECKOUT / "docs" / "planning.md").read_text()
    assert f"$ rljob plan {EXAMPLE} --times {times}\n" in page
    assert text in page


def test_blocks_are_as_long_as_their_time_and_have_what_fits():
    # 20 cells of 1 s
    runs = [run("rollout", 0, 11), run("reward", 11, 15), run("update", 15, 17), run("update", 18, 19)]
    text, marks = blocks(runs, Fraction(20), 20, LETTERS)
    assert (text, marks) == ("[rollout 7][e7][] | ", ["e reward", "[] update", "| update"])


def test_blocks_that_are_cut_are_open_there():
    runs = [run("rollout", -5, 10), run("update", 10, 25)]
    assert blocks(runs, Fraction(20), 20, LETTERS) == ("rollout 7][update 7=", [])
    # of a long stage the first second is no short stage
    assert blocks([run("rollout", 19, 40)], Fraction(20), 20, LETTERS) == (" " * 19 + "=", [])


def test_a_stage_of_little_time_is_seen_and_moves_the_next_by_a_cell():
    runs = [run("rollout", 0, Fraction(1, 100)), run("reward", Fraction(1, 100), 10), run("update", 20, 20)]
    text, marks = blocks(runs, Fraction(20), 20, LETTERS)
    assert (text, marks) == ("|[==e7===]" + " " * 10, ["| rollout", "e reward"])


def test_a_stage_that_rounds_to_the_end_of_the_line_has_its_last_cell():
    assert blocks([run("update", 19, 20)], Fraction(20), 10, LETTERS) == (" " * 9 + "|", ["| update"])


def test_every_name_has_a_letter_of_its_own_while_there_are_any():
    assert letters_of(["rollout", "reward", "re", "err", "rer"]) == dict(
        zip(["rollout", "reward", "re", "err", "rer"], "reabc", strict=True)
    )
    many = letters_of([f"a{i}" for i in range(60)])
    assert list(many.values()).count("?") == 60 - 52


@pytest.mark.parametrize(
    ("length", "line"),
    [
        # 40 cells; numbers are ten cells apart or more
        (40, "0 s       10        20        30"),
        (41, "0 s                 20"),  # 10 s are less than ten cells, and 40 ends behind the last one
        (1, "0 s                 0.5"),
        (4000, "0 s       1,000     2,000     3,000"),
    ],
)
def test_an_axis_has_round_numbers(length, line):
    assert axis(Fraction(length), 40) == line


def test_numbers_are_short():
    numbers = ("0", "0.25", "0.0012345", "1", "62", "12.345", "1234567", "31/3")
    written = ["0", "0.25", "0.00123", "1", "62", "12.3", "1,234,567", "10.3"]
    assert [format_number(Fraction(number)) for number in numbers] == written


def test_the_numbers_for_programs():
    view = timeline_view(with_staleness(APART, 1), ["rollout=10,update=5"])
    result = timeline_json(view.timeline)
    assert result["secondsPerStep"] == 10 and result["synchronousSecondsPerStep"] == 15
    assert result["idle"] == {"train": 0.5, "rollout": 0} and result["length"] == 20
    assert result["runs"][0] == {"group": "train", "stage": "update", "step": 4, "start": 0, "end": 5}


seconds = st.integers(0, 100).map(lambda tenths: f"{tenths / 10}")


@settings(max_examples=60)
@given(st.lists(seconds, min_size=3, max_size=3), st.integers(0, 3), st.integers(40, 200))
def test_no_line_is_longer_than_the_width_or_a_hundred(texts, staleness, width):
    times = [f"rollout={texts[0]},reward={texts[1]}", f"update={texts[2]},advantage=0.1"]
    lines = drawn(APART, *times, staleness=staleness, width=width)
    assert max(map(len, lines)) <= min(width, 100)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=12), st.integers(10, 80))
def test_a_line_has_all_cells_and_a_block_for_a_stage(gaps, num_cells):
    end, runs = 0, []
    for gap, size in gaps:
        runs += [run("update", end + gap, end + gap + size)] * (size > 0)
        end += gap + size
    if end:
        text, _ = blocks(runs, Fraction(end), num_cells, LETTERS)
        assert len(text) == num_cells
        # those that others have pushed behind the end are left out
        assert min(len(runs), 1) <= sum(map(text.count, "[|")) <= len(runs)
