"""Expansion of Slurm node lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.errors import InvalidJob
from rljob_worker.supervision.hosts.nodelist import expanded


@pytest.mark.parametrize(
    ("nodes", "names"),
    [
        ("node7", "node7"),
        ("a,b,c", "a b c"),
        ("gpu[01-03,7],login", "gpu01 gpu02 gpu03 gpu7 login"),
        ("gpu[9-11]", "gpu9 gpu10 gpu11"),
        ("rack[1-2]node[1-2]", "rack1node1 rack1node2 rack2node1 rack2node2"),
        ("gpu[1-2].cluster.org", "gpu1.cluster.org gpu2.cluster.org"),
    ],
)
def test_a_list_is_written_out_in_its_order(nodes, names):
    assert " ".join(expanded(nodes)) == names


@given(st.integers(0, 300), st.integers(0, 300), st.integers(1, 4))
def test_a_range_has_its_numbers_each_as_wide_as_the_first(first, more, width):
    names = expanded(f"n[{first:0{width}}-{first + more}]")
    assert [int(name[1:]) for name in names] == list(range(first, first + more + 1))
    assert len(names[0]) == 1 + max(width, len(str(first)))


@pytest.mark.parametrize("nodes", ["", "gpu[1-", "gpu[]", "gpu[a-b]", "gpu1]", "a,,b", "gpu[1-3]]"])
def test_what_is_no_list_is_refused(nodes):
    with pytest.raises(InvalidJob, match="not a list of nodes"):
        expanded(nodes)


def test_a_list_that_fills_the_memory_is_refused():
    with pytest.raises(InvalidJob, match="more than 65,536"):
        expanded("n[0-99999999]")
