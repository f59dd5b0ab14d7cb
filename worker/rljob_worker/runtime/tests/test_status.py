import threading

from rljob_worker.errors import PeerLost
from rljob_worker.runtime.status import StatusPoster


def test_the_latest_status_is_posted_and_older_ones_may_be_left_out():
    posted, first = [], threading.Event()

    def post(status):
        posted.append(status["stage"])
        first.set()

    poster = StatusPoster(post, interval_seconds=60)
    poster({"stage": "rollout"})
    assert first.wait(10)
    poster({"stage": "reward"})
    poster({"stage": "update"})
    poster.close()
    assert posted[0] == "rollout" and "reward" not in posted


def test_a_lost_sidecar_does_not_stop_the_worker():
    def lost(status):
        raise PeerLost("gone")

    poster = StatusPoster(lost)
    poster({"stage": "rollout"})
    poster.close()
    poster({"stage": "reward"})
