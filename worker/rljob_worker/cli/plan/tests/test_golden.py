"""What `rljob plan` prints, as a whole: a toy on a laptop, and an 8 B model on eight hosts of eight."""

import pytest

from rljob_worker.cli.plan.tests.golden import JOBS, WIDTHS, path_of, text_of


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("width", WIDTHS)
def test_a_plan_is_printed_as_it_was_looked_at(name, width):
    assert text_of(name, width) == path_of(name, width).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("width", [80, 100, 120, 160, 200])
def test_nothing_is_longer_than_a_line_and_no_name_is_cut(name, width):
    lines = text_of(name, width).splitlines()
    assert [line for line in lines if len(line) > width or line != line.rstrip()] == []
    words = {word.strip(",") for line in lines for word in line.split()}
    assert {"response_mask", "rollout_log_probs", "UpdatePolicy", "weights/actor", "advantage->update"} <= words
