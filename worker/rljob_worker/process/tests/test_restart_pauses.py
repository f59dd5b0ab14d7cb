"""Pauses before a process that ended is started again."""

from rljob_worker.process.restart_pauses import pause_seconds


def test_the_pause_grows_with_every_short_life_up_to_a_minute():
    assert [pause_seconds(lives) for lives in (1, 2, 3, 6, 7, 100)] == [1, 2, 4, 32, 60, 60]
