"""Pictures of episodes that wait: a bounded number, evenly spaced."""

import pytest

from rljob_worker.embodied.video_frames import VideoFrames


@pytest.mark.parametrize(
    ("number", "places"),
    [
        (0, []),
        (1, [0]),
        (4, [0, 1, 2, 3]),
        (5, [0, 2, 4]),  # one too many: every second goes
        (8, [0, 2, 4, 6, 7]),  # and the last one is there
        (17, [0, 8, 16]),  # 0 2 4 6 8 -> 0 4 8, 0 4 8 12 16 -> 0 8 16
    ],
)
def test_of_a_long_episode_every_second_picture_goes_and_the_last_one_stays(number: int, places: list[int]) -> None:
    frames = VideoFrames(most=4)
    for at in range(number):
        frames.add(bytes([at]))
    assert [picture[0] for picture in frames.pictures()] == places
