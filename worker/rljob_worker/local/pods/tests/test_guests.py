"""Pauses of guests, and who counts as one."""

from rljob_worker.local.pods.guests import pause_seconds


def test_a_guest_pauses_longer_after_every_short_life_up_to_a_minute():
    assert [pause_seconds(lives) for lives in (1, 2, 3, 6, 7, 100)] == [1, 2, 4, 32, 60, 60]
