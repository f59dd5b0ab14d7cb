"""Tests of what the garbage collector passes over while tests run."""

import gc

from testing import garbage


def test_what_collection_made_is_passed_over_and_garbage_of_tests_is_not() -> None:
    """These tests were collected with the plugin."""
    assert gc.isenabled()
    assert gc.get_freeze_count() > len(gc.get_objects()) > 0
    assert all(item is not garbage for item in gc.get_objects())


def test_collections_are_rare() -> None:
    assert gc.isenabled() and gc.get_threshold()[0] == garbage.NEW_OBJECTS > 700
