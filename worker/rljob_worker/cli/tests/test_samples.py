"""Reading samples: which, in what order, and what of them is shown."""

import json

import pytest
from click.testing import CliRunner

from rljob_worker.cli.app import app
from rljob_worker.cli.samples import (
    SampleCondition,
    SampleQuery,
    conversation_lines,
    parse_condition,
    sample_heading,
    sample_pages,
)
from rljob_worker.errors import InvalidJob

RECORDS = [
    {"step": step, "row": row, "prompt": f"{row}+{row}=", "response": f"it is {2 * row}",
     "reward": row / 4, "rewards": {"correct": float(row % 2)}}
    for step in (1, 2, 3)
    for row in (4 * step, 4 * step + 1)
]  # fmt: skip


def question(*where, step=None, sort=None, limit=50):
    return SampleQuery(step, where, sort, limit)


def rows(asked):
    return [record["row"] for record in asked.answer(RECORDS)]


def test_newest_steps_come_first_and_rows_of_a_step_in_their_order():
    assert rows(question()) == [12, 13, 8, 9, 4, 5]
    assert rows(question(limit=3)) == [12, 13, 8]
    assert rows(question(step=1)) == [4, 5]
    # a limit of 1 looks at more than four records on its way
    assert rows(question(limit=1)) == [12]


def test_rows_of_a_step_come_by_number_and_those_of_its_validation_behind():
    # as two ranks of a validation write them
    records = [{"step": 1, "row": row, "validation": True} for row in (1, 3, 2)] + [{"step": 1, "row": 9}]
    result = question().answer(records)
    assert [(record["row"], "validation" in record) for record in result] == [
        (9, False),
        (1, True),
        (2, True),
        (3, True),
    ]


def test_conditions_all_hold_and_the_order_is_that_of_a_field():
    assert rows(question("rewards.correct=1")) == [13, 9, 5]
    assert rows(question("rewards.correct = 1", "reward<=2.25")) == [9, 5]
    assert rows(question(sort="reward", limit=2)) == [4, 5]
    assert rows(question(sort="-reward", limit=2)) == [13, 12]
    assert rows(question("response~is 16")) == [8]
    assert rows(question(sort="response")) == [], "only numbers have an order here"


@pytest.mark.parametrize(
    ("text", "record", "holds"),
    [
        ("reward<0.5", {"reward": 0.25}, True),
        ("reward<0.5", {"reward": 0.5}, False),
        ("reward>=0.5", {"reward": 0.5}, True),
        ("reward!=0.5", {"reward": 0.5}, False),
        ("reward<10", {"reward": 9}, True),  # as text, 10 is before 9
        ("reward<0.5", {}, False),
        ("reward<0.5", {"reward": None}, False),
        ("validation=true", {"validation": True}, True),
        ("source=gsm8k", {"source": "gsm8k"}, True),
        ("response~a=b", {"response": "so a=b."}, True),
        ("rewards.correct==1", {"rewards": {"correct": 1.0}}, True),
        ("rewards.correct=1", {"rewards": 3}, False),
    ],
)
def test_one_condition(text, record, holds):
    assert parse_condition(text).holds(record) is holds


def test_the_longer_sign_is_meant():
    assert parse_condition("a<=1") == SampleCondition("a", "<=", "1")


@pytest.mark.parametrize("text", ["reward", "<0.5", "", "reward 5"])
def test_what_is_no_condition_is_reported_with_what_is(text):
    with pytest.raises(InvalidJob, match="is not a condition; write FIELD"):
        parse_condition(text)


@pytest.mark.parametrize("text", ["reward<abc", "reward=", "reward!=1,5"])
def test_a_number_is_compared_with_a_number(text):
    with pytest.raises(InvalidJob, match="reward is a number, and .* is none; write one"):
        parse_condition(text).holds({"reward": 0.5})
    assert not parse_condition(text).holds({}), "of what has no reward nobody knows"


def test_a_sample_as_text_with_its_tokens():
    record = RECORDS[1] | {"tokens": {"rollout_log_probs": [-0.25, -1.5], "text": ["it\n", "[b]"], "loss_mask": [1, 0]}}
    assert sample_heading(record) == "step 1  row 5  reward 1.25  (correct 1)"
    assert sample_heading(record | {"policy": "solver"}) == "step 1  solver  row 5  reward 1.25  (correct 1)"
    said = sample_heading({"step": 0, "source": "gsm8k", "validation": True})
    assert said == "step 0  row –  gsm8k  validation"
    text = sample_pages([record], 100, tokens=True, colour=False)
    lines = [line.split() for line in text.splitlines()]
    assert ["#", "text", "loss_mask", "rollout_log_probs"] in lines
    assert ["1", "it\\n", "1", "-0.25"] in lines and ["2", "[b]", "0", "-1.5"] in lines
    assert "rollout_log_probs" not in sample_pages([record], 100, tokens=False, colour=False)


def test_a_sample_that_was_carried_says_which_weights_drew_which_tokens():
    text = sample_pages([RECORDS[0] | {"versions": [[0, 3], [512, 4]]}], 100, tokens=False, colour=False)
    assert "drawn with:\nweights of step 3, from token 513 on of step 4" in text
    assert "drawn with" not in sample_pages(RECORDS[:1], 100, tokens=False, colour=False)


def run_with_samples(tmp_path):
    folder = tmp_path / "runs" / "sums"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    (folder / "samples.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return ["--runs-dir", str(tmp_path / "runs")]


def test_the_command_prints_lines_of_json_and_text(tmp_path):
    where = run_with_samples(tmp_path)
    result = CliRunner().invoke(app, ["samples", "sums", "--json", "--step", "2", *where], catch_exceptions=False)
    assert [json.loads(line) for line in result.stdout.splitlines()] == RECORDS[2:4]
    result = CliRunner().invoke(app, ["samples", "sums", "--where", "reward<1.1", *where], catch_exceptions=False)
    assert "step 1  row 4" in result.stdout and "4+4=" in result.stdout and "row 5" not in result.stdout


def test_no_sample_says_which_there_are(tmp_path):
    where = run_with_samples(tmp_path)
    with pytest.raises(InvalidJob, match="no such sample; it has those of the steps 1 to 3"):
        CliRunner().invoke(app, ["samples", "sums", "--step", "7", *where], catch_exceptions=False)
    for asked in (["--where", "foo<1"], ["--sort", "-foo"]):
        with pytest.raises(InvalidJob, match="no sample has a field foo, but .*reward"):
            CliRunner().invoke(app, ["samples", "sums", *asked, *where], catch_exceptions=False)
    with pytest.raises(InvalidJob, match="no sample has a field foo"):
        CliRunner().invoke(app, ["samples", "sums", "--json", "--where", "foo<1", *where], catch_exceptions=False)
    result = CliRunner().invoke(app, ["samples", "sums", "--json", "--where", "reward>99", *where])
    assert (result.exit_code, result.stdout) == (0, "")
    with pytest.raises(InvalidJob, match="--where leaves none"):
        CliRunner().invoke(app, ["samples", "sums", "--where", "reward>99", *where], catch_exceptions=False)


def test_a_conversation_is_shown_by_who_said_what_with_rewards_beside():
    call = {"id": "call_0_0", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    record = {
        "step": 2, "row": 5, "prompt": "p", "response": "r", "reward": 1.5, "turns": 2,
        "messages": [
            {"role": "user", "content": "how many?"},
            {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]},
            {"role": "tool", "content": "7"},
            {"role": "assistant", "content": "it is 7"},
        ],
        "environment_rewards": [[0, 0.25], [1, 1.0], [None, 0.25]],
    }  # fmt: skip
    heading, *lines = sample_pages([record], 80, tokens=False, colour=False).splitlines()
    assert "row 5  reward 1.5  2 turns" in heading
    assert lines == [
        "user (masked):",
        "how many?",
        "assistant (turn 1, sampled, reward 0.25):",
        "(thinks) hm",
        'calls add({"a": 1})',
        "tool (masked):",
        "7",
        "assistant (turn 2, sampled, reward 1):",
        "it is 7",
        "reward of the world at the end: 0.25",
    ]


def test_agents_of_a_team_are_named_each_in_a_style_of_its_own():
    said = [
        {"role": "assistant", "content": text, "agent": agent} for text, agent in (("3", "solver"), ("no", "checker"))
    ]
    record = {"step": 1, "row": 5, "agent": "checker", "messages": [{"role": "user", "content": "2?"}, *said]}
    lines = dict(conversation_lines(record))
    assert list(lines)[::2] == ["user (masked):", "solver (turn 1, sampled):", "checker (turn 2, sampled):"]
    assert len({lines["solver (turn 1, sampled):"], lines["checker (turn 2, sampled):"]}) == 2
    heading, *_ = sample_pages([record], 80, tokens=False, colour=False).splitlines()
    assert "row 5  checker" in heading
