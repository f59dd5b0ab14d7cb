"""Tests of the DAG: levels, ancestors, followers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.pipeline.dag import Graph

DIAMOND = Graph({"a": (), "b": ("a",), "c": ("a",), "d": ("c", "b")})


def names(number):
    return [f"v{i}" for i in range(number)]


@st.composite
def dags(draw):
    """Edges only from lower to higher numbers, declared in any order."""
    number = draw(st.integers(1, 12))
    after = {
        name: tuple(draw(st.lists(st.sampled_from(names(number)[:i]), unique=True)) if i else ())
        for i, name in enumerate(names(number))
    }
    return Graph({name: after[name] for name in draw(st.permutations(list(after)))})


@st.composite
def graphs(draw):
    number = draw(st.integers(1, 8))
    return Graph({name: tuple(draw(st.lists(st.sampled_from(names(number)), max_size=3))) for name in names(number)})


def test_levels_are_longest_paths():
    graph = Graph({"d": ("a", "c"), "c": ("b",), "b": ("a",), "a": ()})
    assert graph.levels() == {"a": 0, "b": 1, "c": 2, "d": 3}
    assert graph.order() == ("a", "b", "c", "d")


def test_a_level_keeps_declaration_order():
    assert DIAMOND.order() == ("a", "b", "c", "d")
    assert Graph({"d": ("c", "b"), "c": ("a",), "b": ("a",), "a": ()}).order() == ("a", "c", "b", "d")


def test_ancestors_and_followers():
    assert DIAMOND.ancestors("d") == {"a", "b", "c"}
    assert DIAMOND.ancestors("a") == frozenset()
    assert DIAMOND.followers() == {"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}


def test_unknown_names_are_left_out():
    assert Graph({"a": ("nobody",)}).order() == ("a",)


@pytest.mark.parametrize(
    ("after", "cycle"),
    [
        ({"a": ("a",)}, ("a", "a")),
        ({"a": ("c",), "b": ("a",), "c": ("b",)}, ("a", "b", "c", "a")),
        ({"a": (), "b": ("a", "c"), "c": ("b",)}, ("b", "c", "b")),
        ({"a": (), "b": ("a",)}, ()),
    ],
)
def test_a_cycle_is_named_in_the_order_of_its_arrows(after, cycle):
    assert Graph(after).cycle() == cycle


@given(dags())
def test_the_order_puts_everything_after_what_it_comes_after(graph):
    order = graph.order()
    assert graph.cycle() == ()
    assert sorted(order) == sorted(graph.after)
    for name in order:
        assert all(order.index(ancestor) < order.index(name) for ancestor in graph.ancestors(name))
        assert name not in graph.ancestors(name)


@given(dags())
def test_each_level_is_one_more_than_the_highest_before_it(graph):
    levels = graph.levels()
    for name, before in graph.after.items():
        assert levels[name] == max((levels[item] + 1 for item in before), default=0)


@given(graphs())
def test_a_graph_has_a_cycle_or_an_order(graph):
    cycle = graph.cycle()
    if not cycle:
        assert len(graph.order()) == len(graph.after)
        return
    assert cycle[0] == cycle[-1]
    for before, after in zip(cycle, cycle[1:], strict=False):
        assert before in graph.after[after]
    with pytest.raises(AssertionError, match="with the cycle"):
        graph.order()
