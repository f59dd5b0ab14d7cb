"""Stragglers: asked at once, reported in a line each, and bounded."""

from collections.abc import Sequence
from typing import Any

import pytest

from rljob_worker.databuffer.protocol.peer_side import Question, WhatDoTheyDo, WhatIsMissing
from rljob_worker.databuffer.routes.hosts import Host
from rljob_worker.databuffer.routes.job_tree import JobTree
from rljob_worker.databuffer.server.stragglers import StragglerReport
from rljob_worker.errors import DeadlineExceeded, PeerLost

HERE = Host("train", 0)
NOBODY: dict[str, Any] = {"said": {}, "below": []}
SHAPE = JobTree((("train", 1), ("rollout", 40)), fan_out=2)  # 0 has 1 and 2, rollout-0 and rollout-1; they have 3 to 6


class Peers:
    """Answers of some; of the others that nobody is missing."""

    def __init__(self, **answers: dict[str, Any] | PeerLost) -> None:
        self.answers = {name.replace("_", "-"): answer for name, answer in answers.items()}
        self.asked: list[tuple[list[str], Question, float]] = []

    def ask(self, hosts: Sequence[Host], question: Question, seconds: float) -> dict[Host, dict[str, Any] | PeerLost]:
        self.asked.append(([str(host) for host in hosts], question, seconds))
        return {host: self.answers.get(str(host), NOBODY) for host in hosts}


def lateness(peers: Peers, here: dict[str, Any] = NOBODY) -> StragglerReport:
    return StragglerReport(HERE, SHAPE, peers, lambda question: here)


def said(*ranks: int, below: Sequence[str] = ()) -> dict[str, Any]:
    return {"said": {f"rank {rank} of group rollout": "it has not said anything yet" for rank in ranks}, "below": below}


def rollout(*indices: int) -> list[Host]:
    return [Host("rollout", index) for index in indices]


def test_producers_that_are_late_are_named_host_by_host():
    peers = Peers(rollout_0=said(0, 1))
    late, kind = lateness(peers).of_hosts("a->b", 3, rollout(0, 2))
    assert kind is DeadlineExceeded and late == [
        "rank 0 of group rollout (host rollout-0): it has not said anything yet",
        "rank 1 of group rollout (host rollout-0): it has not said anything yet",
        "host rollout-2: its workers have put everything, it is being offered",
    ]
    assert peers.asked == [(["rollout-0", "rollout-2"], WhatIsMissing("a->b", 3), 5.0)]


def test_hosts_that_do_not_answer_are_lost_peers_beside_those_who_are_late():
    lost = {"rollout_1": PeerLost("it hangs"), "rollout_2": PeerLost("it, too")}
    late, kind = lateness(Peers(rollout_0=said(0), **lost)).of_hosts("a->b", 3, rollout(1, 2, 0))
    assert kind is PeerLost and [line.split(":")[0] for line in late] == [
        "host rollout-1",
        "host rollout-2",
        "rank 0 of group rollout (host rollout-0)",
    ]
    assert late[0] == "host rollout-1: it hangs"


def test_no_more_than_sixteen_are_asked_and_eight_are_shown():
    peers = Peers()
    late, _ = lateness(peers).of_hosts("a->b", 3, rollout(*range(20)))
    assert peers.asked[0][0] == [f"rollout-{index}" for index in range(16)]
    assert len(late) == 9 and late[-1] == "and 8 more"
    assert len(lateness(peers).of_hosts("a->b", 3, rollout(*range(8)))[0]) == 8


def test_this_host_answers_itself():
    peers = Peers()
    late, kind = lateness(peers, said(5)).of_hosts("a->b", 3, [HERE])
    assert late == ["rank 5 of group rollout (host train-0): it has not said anything yet"]
    assert kind is DeadlineExceeded and peers.asked == []


def test_a_gathering_is_looked_into_from_the_root_down_to_who_is_missing():
    peers = Peers(rollout_0={"said": {}, "below": ["rollout-3"]}, rollout_3=said(3))
    late, kind = lateness(peers, {"said": {}, "below": ["rollout-0"]}).of_gathering("report", 7)
    assert late == ["rank 3 of group rollout (host rollout-3): it has not said anything yet"]
    assert kind is DeadlineExceeded
    assert peers.asked == [([name], WhatIsMissing("report", 7), 5.0) for name in ("rollout-0", "rollout-3")]


def test_nothing_below_those_who_are_late_is_asked():
    peers = Peers(rollout_0=said(0, below=["rollout-3"]))
    late, _ = lateness(peers, {"said": {}, "below": ["rollout-0"]}).of_gathering("report", 7)
    assert len(late) == 1 and len(peers.asked) == 1


def test_a_host_that_hangs_in_the_tree_is_a_lost_peer():
    peers = Peers(rollout_1=PeerLost("it hangs"))
    late, kind = lateness(peers, {"said": {}, "below": ["rollout-0", "rollout-1"]}).of_gathering("report", 7)
    assert (late, kind) == (["host rollout-1: it hangs"], PeerLost)


def test_a_gathering_in_which_nobody_is_missing():
    peers = Peers()
    assert lateness(peers).of_gathering("report", 7) == ([], DeadlineExceeded)
    names = [f"rollout-{index}" for index in range(20)]
    lateness(peers, {"said": {}, "below": names}).of_gathering("layout/a->b", 7)
    assert peers.asked == [(names[:16], WhatIsMissing("layout/a->b", 7), 5.0)]


@pytest.mark.parametrize(
    "answer, words",
    [
        ({"3": "stage a"}, "stage a"),
        ({"4": "stage a"}, "it has not said anything yet"),
        (PeerLost("it hangs"), "it hangs"),
    ],
)
def test_last_words_of_a_worker(answer: dict[str, Any] | PeerLost, words: str):
    peers = Peers(rollout_0=answer)
    assert lateness(peers).last_words(Host("rollout", 0), 3) == words
    assert peers.asked == [(["rollout-0"], WhatDoTheyDo(), 5.0)]


def test_names_of_groups_may_have_dashes():
    shape = JobTree((("big-group", 4),), fan_out=2)
    peers = Peers(big_group_2=said(2))
    asked = StragglerReport(Host("big-group", 0), shape, peers, lambda question: {"said": {}, "below": ["big-group-2"]})
    assert len(asked.of_gathering("report", 1)[0]) == 1
