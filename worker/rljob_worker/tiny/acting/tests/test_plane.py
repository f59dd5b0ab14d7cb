"""The plane of the example, and its script."""

import numpy as np

from rljob_worker.tiny.acting import plane


def test_a_picture_shows_cursor_and_targets() -> None:
    picture = plane.drawn(np.array([0.0, 0.9]))
    assert picture.shape == (64, 64, 3)
    # -0.5 and 0.5 are pixels 16 and 47, 0 is pixel 32 and 0.9 pixel 60
    assert [picture[at].tolist() for at in ((16, 16), (16, 47), (47, 16), (47, 47), (60, 32), (32, 32))] == [
        [255, 0, 0],
        [0, 255, 0],
        [0, 0, 255],
        [255, 255, 0],
        [255, 255, 255],
        [0, 0, 0],
    ]


def test_an_action_moves_a_quarter_and_not_out_of_the_plane() -> None:
    np.testing.assert_allclose(plane.moved(np.array([0.0, 0.9]), np.array([-0.5, 3.0])), [-0.125, 1.0])


def test_a_target_is_reached_when_both_axes_are_near() -> None:
    assert plane.is_reached(np.array([-0.35, -0.65]), "red")
    assert not plane.is_reached(np.array([-0.5, -0.2]), "red")
    assert plane.distance(np.array([0.1, 0.3]), "red") == 1.0  # 0.6 and 0.8


def test_episodes_begin_where_they_are_not_over() -> None:
    rng = np.random.default_rng(0)
    for task in plane.TARGETS:
        starts = np.array([plane.start(rng, task) for _ in range(50)])
        assert (np.abs(starts - plane.TARGETS[task]).max(axis=1) > 0.5).all() and np.abs(starts).max() <= 0.9


def test_the_script_moves_one_time_in_four_and_only_where_it_has_to() -> None:
    rng = np.random.default_rng(1)
    # across there are 1 left to the green target, up 0: it moves to the right in a quarter of first actions
    first = np.array([plane.scripted(rng, np.array([-0.5, -0.5]), "green", 4)[0] for _ in range(2000)])
    assert set(first[:, 0].tolist()) == {0.0, 1.0} and not first[:, 1].any()
    assert abs(first[:, 0].mean() - 0.25) < 0.05
