"""What a job calls confined is imported confined when it is checked."""

import pytest

from rljob_worker.cli.validate import verdict_on
from rljob_worker.rehearsal import rehearse
from rljob_worker.rehearsal.tests.good_job import write

pytestmark = pytest.mark.usefixtures("confining_kernel")

NOSY = """
WHO = open("/etc/passwd").read()


def look(word: str) -> str:
    return word
"""


def conversation(**fields):
    """A job with a tool in a module of its own."""
    return {"rollout.conversation": {"tools": [{"run": "nosy:look"}], **fields}}


@pytest.mark.parametrize("mode", ["Preferred", "Off"])
def test_a_module_that_reads_of_the_machine_is_imported_as_it_is_called(mode, tmp_path):
    problems = verdict_on(write(tmp_path, {"nosy.py": NOSY}, conversation(confinement=mode)), ()).problems
    assert [item.path for item in problems] == ["spec.rollout.conversation.tools[0].run"] * (mode != "Off")
    assert all("PermissionError" in item.message and "/etc/passwd" in item.message for item in problems)


def test_what_cannot_be_confined_here_is_not_imported(tmp_path, monkeypatch):
    monkeypatch.setattr(rehearse, "missing_confinement", lambda: iter(["there is no Landlock"]))
    verdict = verdict_on(write(tmp_path, {"nosy.py": "1 / 0"}, conversation(confinement="Required")), ())
    assert verdict.problems == ()
    assert "not looked at: nosy:look: confinement: Required (there is no Landlock)" in verdict.text()
