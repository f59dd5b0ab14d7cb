"""The plane of the example, and its script."""

import numpy as np
import pytest

from rljob_worker.tiny.acting import plane


def test_a_picture_shows_cursor_and_targets() -> None:
    picture = plane.drawn(np.array([0.0, 0.9]))
    assert picture.shape == (64, 64, 3)
    # -0.45 and 0.45 are pixels 17 and 46, 0 is pixel 32 and 0.9 pixel 60
    assert [picture[at].tolist() for at in ((17, 17), (17, 46), (46, 17), (46, 46), (60, 32), (32, 32))] == [
        [255, 0, 0],
        [0, 255, 0],
        [0, 0, 255],
        [255, 255, 0],
        [255, 255, 255],
        [0, 0, 0],
    ]


def test_an_action_moves_a_little_and_not_out_of_the_plane() -> None:
    np.testing.assert_allclose(plane.moved(np.array([0.0, 0.95]), np.array([-0.5, 3.0])), [-0.03, 1.0])


def test_a_target_is_reached_when_both_axes_are_near() -> None:
    assert plane.is_reached(np.array([-0.35, -0.55]), "red")
    assert not plane.is_reached(np.array([-0.45, -0.25]), "red")
    assert plane.distance(np.array([0.15, 0.35]), "red") == pytest.approx(1.0)  # 0.6 and 0.8


@pytest.mark.parametrize("task", plane.TARGETS)
def test_a_quarter_of_episodes_begins_where_eight_actions_do_not_reach(task: str) -> None:
    rng = np.random.default_rng(0)
    starts = np.array([plane.start(rng, task) for _ in range(400)])
    away = np.abs(starts - plane.TARGETS[task]).max(axis=1)
    within_reach = away <= 8 * 0.06 + 0.15
    assert ((away[within_reach] > 0.2) & (away[within_reach] < 0.5)).all() and np.abs(starts).max() <= 0.95
    assert abs(within_reach.mean() - 0.75) < 0.05
    # and on all sides alike, so that successes end around their target
    sides = np.sign(starts - plane.TARGETS[task])[within_reach].mean(axis=0)
    assert np.abs(sides).max() < 0.15


def test_the_script_moves_one_time_in_four_and_only_where_it_has_to() -> None:
    rng = np.random.default_rng(1)
    # across there is 0.95 left to the green target, up 0: it moves to the right in a quarter of first actions
    first = np.array([plane.scripted(rng, np.array([-0.5, -0.45]), "green", 4)[0] for _ in range(2000)])
    assert set(first[:, 0].tolist()) == {0.0, 1.0} and not first[:, 1].any()
    assert abs(first[:, 0].mean() - 0.25) < 0.05
