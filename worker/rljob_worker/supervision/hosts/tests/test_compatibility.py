"""Who is here and who cannot take part, in words."""

from dataclasses import replace

import msgspec
import pytest

from rljob_worker.supervision.hosts.compatibility import Expected, absent_hosts, flaw_lines, flaws_of, sections_of
from rljob_worker.supervision.hosts.membership import Membership
from rljob_worker.supervision.hosts.messages import Hello
from rljob_worker.tests.documents import job

EXPECTED = Expected(3, "0.1.0", "tiny", {"stop": "a", "data": "b"}, "hash")


def hello(**changes):
    same = Hello(2, 3, "gpu03", "0.1.0", "tiny", {"stop": "a", "data": "b"}, "hash")
    return msgspec.structs.replace(same, **changes)


def test_a_host_like_host_0_can_take_part():
    assert flaws_of(hello(), EXPECTED) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": "0.2.0", "flaws": ("x",)}, "has rljob 0.2.0, host 0 has 0.1.0: install the same on all hosts"),
        ({"num_hosts": 4}, "was started with 4 hosts, host 0 of 3"),
        ({"job": "other"}, "launches the job other, host 0 tiny"),
        (
            {"sections": {"stop": "x", "env": "y", "data": "b"}},
            "another job file, or other --set: spec.env, spec.stop;",
        ),
        ({"plan": "other"}, "plans the same job otherwise"),
        (
            {"flaws": ("spec.workerGroups: only 4 CUDA devices for a pod",)},
            "cannot run its pod: spec.workerGroups: only 4",
        ),
    ],
)
def test_what_keeps_a_host_out_is_said_with_its_name(changes, words):
    (flaw,) = flaws_of(hello(**changes), EXPECTED)
    assert flaw.startswith("host 2 (gpu03) ") and words in flaw


def test_all_that_a_host_has_found_is_said():
    assert len(flaws_of(hello(flaws=("no driver", "no disk")), EXPECTED)) == 2


def test_sections_differ_where_jobs_do():
    one, other = sections_of(job()), sections_of(job(stop={"steps": 11}))
    assert [name for name in one if one[name] != other[name]] == ["stop"]


def test_who_is_missing_is_named_as_far_as_it_is_known():
    membership = Membership(0, 4, "gpu01", 1, ("gpu01", "gpu02", "gpu03", "gpu04"))
    assert absent_hosts(membership, {0, 2}) == "2 of 4 hosts: host 1 (gpu02), host 3 (gpu04)"
    assert absent_hosts(membership, range(4)) == ""
    assert absent_hosts(replace(membership, num_hosts=1024, names=()), {0}) == (
        "1023 of 1024 hosts: host 1, host 2, host 3, host 4, host 5, host 6, host 7, host 8 and 1015 more"
    )


def test_a_person_reads_a_few_of_a_thousand_flaws():
    assert flaw_lines([f"flaw {number}" for number in range(10)]).splitlines()[-2:] == ["flaw 7", "and 2 more hosts"]
