"""What of the trees of weights the busiest host carries."""

from __future__ import annotations

from rljob_api.planning.weights.trees import TreeLoad, child_places, parent_place, stream_connections, tree_load


def test_places_are_numbered_level_by_level():
    assert [parent_place(place) for place in range(5)] == [None, 0, 0, 1, 1]
    assert [list(child_places(place, 4)) for place in range(5)] == [[1, 2], [3], [], [], []]


def test_as_many_trees_as_targets_load_all_of_them_alike():
    """Three trees over three targets: each is once at the top, and has two children there."""
    assert tree_load((0, 1, 2), 3) == TreeLoad(handed_on=2, of_one_parent=1)


def test_of_one_source_the_first_target_hands_on_everything():
    assert tree_load((0,), 4) == TreeLoad(handed_on=2, of_one_parent=1)


def test_sources_of_one_host_are_one_parent():
    """To the only target all come from there; of two each is at the top of two trees, and below the other in two."""
    assert tree_load((0, 0, 0, 0), 1) == TreeLoad(handed_on=0, of_one_parent=4)
    assert tree_load((0, 0, 0, 0), 2) == TreeLoad(handed_on=2, of_one_parent=2)


def test_connections_follow_cores_up_to_eight():
    assert [stream_connections(cores) for cores in (1, 2, 3, 4, 8, 16, 192)] == [1, 1, 1, 2, 4, 8, 8]
