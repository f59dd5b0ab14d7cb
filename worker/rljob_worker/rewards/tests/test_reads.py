"""Which columns a reward function reads, from its source."""

from functools import wraps

import pytest

from rljob_worker.errors import InvalidJob
from rljob_worker.rewards.reads import certain_reads, check_row_reads


def reads_at_once(row):
    left, right = row["left"], row["right"]["deeper"]
    row.get("maybe")
    return float(left == right) + len(row["response"])


def reads_in_a_branch(row):
    kind = row["source"]
    if kind == "code":
        return row["tests"]
    return row["later"]


def reads_perhaps(row):
    result = row["one"] if row.get("is_one") else 0
    result = result or row["two"]
    return result + sum(row[name] for name in ("three",)) + sum(row["four"] for _ in ())


def reads_in_a_list(row):
    return [row["inside"] + word for word in row["words"]]


def reads_in_two_loops(row):
    return [one + other for one in row["ones"] for other in row["others"]]


def reads_in_a_loop(row):
    for word in row["words"]:
        row["word"].count(word)


def writes(row):
    row["own"] = 1
    return row["own"] + row["other"]


def fills(row):
    row.setdefault("own", 1)
    return row["own"]


def has_it_filled(row):
    left = row["left"]
    takes_another(row)
    return left + row["own"]


def names_another_alike(row):
    rows = [row["left"]]
    return rows + row["right"]


def takes_another(row):
    row = dict(row)
    return row["anything"]


def trl(completions, **kwargs):
    return [len(hint) for hint in completions] + kwargs["hint"]


def verl(solution_str, ground_truth, extra_info=None):
    return extra_info["anything"]


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (reads_at_once, ["left", "right", "response"]),
        (reads_in_a_branch, ["source"]),
        (reads_perhaps, []),
        (reads_in_a_list, ["words"]),
        (reads_in_two_loops, ["ones"]),
        (reads_in_a_loop, ["words"]),
        (writes, []),
        (takes_another, []),
        (fills, []),
        (has_it_filled, ["left"]),
        (names_another_alike, ["left", "right"]),
        (lambda row: row["in a lambda"], []),
        (len, []),
    ],
)
def test_what_is_read_of_every_row_is_known(function, names):
    assert [name for name, _ in certain_reads(function, "row")] == names


def test_a_column_that_no_row_has_is_reported_with_its_line_and_what_there_is():
    first = trl.__code__.co_firstlineno
    with pytest.raises(
        InvalidJob, match=rf"a: m:trl reads kwargs\['hint'\] in line {first + 1}, .* have answer, source;"
    ):
        check_row_reads("a", "m:trl", trl, ["answer", "source"], ())


def test_what_a_decorated_function_reads_is_that_of_the_function_itself():
    @wraps(trl)
    def decorated(*arguments, **options):
        return trl(*arguments, **options)

    with pytest.raises(InvalidJob, match=r"reads kwargs\['hint'\]"):
        check_row_reads("a", "m:decorated", decorated, ["answer"], ())


@pytest.mark.parametrize(
    ("function", "columns", "options"),
    [
        (reads_at_once, ["left", "right"], ()),  # every row has a response
        (trl, ["hint"], ()),
        (trl, [], ["hint"]),
        (verl, [], ()),
    ],
)
def test_what_rows_and_options_bring_is_read(function, columns, options):
    check_row_reads("a", "m:f", function, columns, options)
