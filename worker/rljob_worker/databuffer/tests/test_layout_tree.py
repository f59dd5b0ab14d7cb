"""Layout trees of several hosts in one process: calls between hosts are letters that the test delivers."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from rljob_worker.databuffer import layout_tree
from rljob_worker.databuffer.hosts import Host
from rljob_worker.databuffer.layout_tree import LayoutTree
from rljob_worker.databuffer.layouts import Layout
from rljob_worker.databuffer.pull import Late
from rljob_worker.databuffer.routing import StageRoute
from rljob_worker.databuffer.rows.segment import Views, plan_contents
from rljob_worker.databuffer.store import Item, Reader, Segment, Store
from rljob_worker.databuffer.tests.gang import two_stages
from rljob_worker.databuffer.wire import decode_layout
from rljob_worker.errors import DeadlineExceeded, PeerLost
from rljob_worker.row_index import RowIndex

EDGE = "a->b"


@dataclass
class Letters:
    """The `Peers` of one host: what it sends is kept, whom it probes is written down."""

    sent: list[tuple[Host, bytes]] = field(default_factory=list)
    probed: list[Host] = field(default_factory=list)
    dead: frozenset[Host] = frozenset()
    when_probed: Callable[[Host], None] = lambda host: None

    def act(self, host: Host, name: str, body: bytes) -> None:
        assert name == "layout"
        self.sent.append((host, body))

    def check(self, host: Host) -> None:
        self.probed.append(host)
        if host in self.dead:
            raise PeerLost(f"{host} is dead")
        self.when_probed(host)


@dataclass
class Forest:
    """The trees of all hosts of a route."""

    route: StageRoute
    fan_out: int = 32
    post: list[tuple[Host, Host]] = field(default_factory=list)
    """Sender and receiver of every letter that was delivered."""
    written_for: set[tuple[str, int]] = field(default_factory=set)
    """Edges and steps of all letters."""

    def __post_init__(self) -> None:
        self.stores = {host: Store(1 << 20) for host in self.route.participants}
        self.letters = {host: Letters() for host in self.route.participants}
        self.trees = {host: self._tree(host) for host in self.route.participants}

    def _tree(self, host: Host) -> LayoutTree:
        peers: Any = self.letters[host]
        return LayoutTree(host, {EDGE: self.route}, self.stores[host], peers, self.background, self.fan_out)

    def background(self, edge: str, step: int, call: Callable[[], Any]) -> None:
        """At once, so that the letter is there when the call returns."""
        self.written_for.add((edge, step))
        call()

    def seal(self, step: int, part: int, row_ids: list[int]) -> Segment:
        """Rows of groups of two, as many tokens as the row's number and one."""
        host = self.route.producer(part)[1]
        store, ids = self.stores[host], np.array(row_ids, np.int64)
        segment = store.reserve(Item(EDGE, step, "part", part), 1, 0.0)
        store.seal_part(segment, plan_contents(0, {}))
        self.trees[host].part_sealed(EDGE, step, part, Views(RowIndex(ids, ids // 2, ids + 1), {}))
        return segment

    def deliver(self) -> None:
        """Every letter, and those that are written in answer."""
        while waiting := [(host, letters) for host, letters in self.letters.items() if letters.sent]:
            sender, letters = waiting[0]
            receiver, body = letters.sent.pop()
            self.post.append((sender, receiver))
            self.hand_over(receiver, body)

    def hand_over(self, receiver: Host, body: bytes) -> None:
        head, layout = decode_layout(body)
        tree = self.trees[receiver]
        if head["position"] < 0:
            tree.complete(head["edge"], head["step"], layout)
        else:
            tree.from_child(head["edge"], head["step"], head["position"], layout)

    def step(self, step: int) -> None:
        """A whole step, two rows of one group from every part."""
        for part in range(self.route.num_parts):
            self.seal(step, part, [2 * part, 2 * part + 1])
        self.deliver()


def route(producers: int, consumers: int, **options: Any) -> StageRoute:
    """Balanced rows between groups of hosts with one worker each."""
    made = {"producer_balance": "Tokens", "batch_size": producers, **options}
    return StageRoute.of(two_stages((producers, 1), (consumers, 1), **made), EDGE)


def rollout(*indices: int) -> list[Host]:
    return [Host("rollout", index) for index in indices]


def train(*indices: int) -> list[Host]:
    return [Host("train", index) for index in indices]


def test_layouts_meet_at_the_root_and_reach_every_host_over_four_levels():
    forest = Forest(route(5, 3, balance="Tokens"), fan_out=2)
    forest.step(1)
    # numbered level by level: 0 | 1 2 | 3 4 5 6 | 7, the first five produce
    hosts = [*rollout(0, 1, 2, 3, 4), *train(0, 1, 2)]
    up = [(3, 1), (4, 1), (1, 0), (2, 0)]
    down = [(0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (2, 6), (3, 7)]
    assert sorted(forest.post) == sorted((hosts[a], hosts[b]) for a, b in up + down)
    assert forest.written_for == {(EDGE, 1)}  # what fails when one of them cannot be delivered
    for tree in forest.trees.values():
        assignment = tree.assignment(EDGE, 1)
        assert assignment is not None
        assert assignment.layout.index.row_ids.tolist() == list(range(10))
        assert assignment.layout.index.group_ids.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
        assert assignment.layout.index.num_tokens.tolist() == list(range(1, 11))
        assert assignment.layout.parts.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
        # most tokens first, to the share with fewest: 10 5 4 | 9 6 3 | 8 7 2 1
        assert assignment.shares.tolist() == [2, 2, 1, 0, 0, 1, 2, 2, 1, 0]


def test_nobody_has_an_assignment_before_the_last_part():
    forest = Forest(route(3, 1), fan_out=1)
    forest.seal(1, 0, [0, 1])
    forest.seal(1, 2, [4, 5])
    forest.deliver()
    assert {tree.assignment(EDGE, 1) for tree in forest.trees.values()} == {None}
    forest.seal(1, 1, [2, 3])
    forest.deliver()
    assert None not in {tree.assignment(EDGE, 1) for tree in forest.trees.values()}


def test_a_part_is_kept_for_the_hosts_whose_shares_it_feeds():
    # by ordinal groups 0 and 1 are share 0, groups 2 and 3 share 1; share 1 spans two hosts
    plan = two_stages((3, 1), (4, 1), tp=2, producer_balance="Tokens", batch_size=4)
    forest = Forest(StageRoute.of(plan, EDGE))
    both = forest.seal(1, 0, [0, 1, 4, 5])
    second = forest.seal(1, 1, [6, 7])
    nobody = forest.seal(1, 2, [])
    assert both.readers is None
    forest.deliver()
    first_share = {Reader("train-0", 0), Reader("train-1", 0)}
    second_share = {Reader("train-2", 1), Reader("train-3", 1)}
    assert both.readers == first_share | second_share
    assert second.readers == second_share
    assert nobody.readers == set()
    assert forest.stores[Host("rollout", 2)].used_bytes == 0  # read by nobody, gone at once


def test_the_same_message_again_changes_nothing():
    forest = Forest(route(2, 2), fan_out=1)
    forest.seal(1, 1, [2, 3])
    # what host 1 tells its parent is told again
    ((parent, up),) = forest.letters[Host("rollout", 1)].sent
    forest.hand_over(parent, up)
    segment = forest.seal(1, 0, [0, 1])
    down = forest.letters[Host("rollout", 0)].sent[-1][1]
    forest.deliver()
    tree, store = forest.trees[Host("rollout", 0)], forest.stores[Host("rollout", 0)]
    before = tree.assignment(EDGE, 1)
    store.release(segment, Reader("train-0", 0))
    forest.hand_over(Host("rollout", 0), down)
    assert tree.assignment(EDGE, 1) is before
    assert store.used_bytes == 0 and segment.readers == set()


def test_the_last_three_steps_of_each_edge_are_remembered():
    forest = Forest(route(2, 1))
    for step in range(1, 6):
        forest.step(step)
    for tree in forest.trees.values():
        known = [step for step in range(1, 7) if tree.assignment(EDGE, step) is not None]
        assert known == [3, 4, 5]


def test_what_a_child_told_is_not_kept_for_good():
    forest = Forest(route(2, 1))
    forest.seal(1, 0, [0, 1])
    ids = np.array([2, 3])
    kept = weakref.ref(ids)
    forest.trees[Host("rollout", 0)].from_child(EDGE, 1, 1, Layout(ids // 2, RowIndex(ids, ids // 2, ids + 1)))
    del ids
    assert kept() is not None
    for step in range(2, 5):
        forest.step(step)
    assert kept() is None


def test_edges_do_not_forget_for_each_other():
    forest = Forest(route(1, 1))
    root = Host("rollout", 0)
    tree = LayoutTree(
        root, {EDGE: forest.route, "c->d": forest.route}, Store(1 << 20), forest.letters[root], forest.background
    )
    ids = np.arange(2)
    for edge, step in (("c->d", 1), (EDGE, 1), (EDGE, 9)):
        tree.part_sealed(edge, step, 0, Views(RowIndex(ids, ids // 2, ids), {}))
    assert tree.assignment("c->d", 1) is not None
    assert tree.assignment(EDGE, 1) is None


def test_whoever_waits_gets_the_assignment():
    forest = Forest(route(1, 1))
    forest.step(1)
    tree = forest.trees[Host("train", 0)]
    assert tree.wait(forest.route, 1, 0.0) is tree.assignment(EDGE, 1)
    assert forest.letters[Host("train", 0)].probed == []


def test_when_the_time_is_up_all_producers_are_named():
    forest = Forest(StageRoute.of(two_stages((2, 2), (1, 1), balance="Tokens"), EDGE))
    with pytest.raises(Late) as caught:
        forest.trees[Host("train", 0)].wait(forest.route, 1, 0.0)
    assert caught.value.missing == [(Host("rollout", 0), [0, 1]), (Host("rollout", 1), [2, 3])]


def test_a_failure_of_the_step_ends_the_wait():
    forest = Forest(route(1, 1))
    forest.stores[Host("train", 0)].fail(EDGE, 1, DeadlineExceeded("nobody comes"))
    with pytest.raises(DeadlineExceeded, match="nobody comes"):
        forest.trees[Host("train", 0)].wait(forest.route, 1, 3600.0)


def test_a_dead_producer_is_found_by_whoever_waits_however_many_there_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(layout_tree, "PROBE_SECONDS", 0.0)
    forest = Forest(route(20, 1))
    waiting = Host("rollout", 3)
    letters = forest.letters[waiting]
    letters.dead = frozenset(rollout(18))
    with pytest.raises(PeerLost, match="rollout-18 is dead"):
        forest.trees[waiting].wait(forest.route, 1, 3600.0)
    # in turns, never itself
    assert letters.probed == [host for host in rollout(*range(19)) if host != waiting]


def test_a_look_asks_each_producer_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(layout_tree, "PROBE_SECONDS", 0.0)
    forest = Forest(route(2, 1))
    letters = forest.letters[Host("train", 0)]
    # the layout comes while the second producer answers
    letters.when_probed = lambda host: forest.step(1) if host == Host("rollout", 1) else None
    assert forest.trees[Host("train", 0)].wait(forest.route, 1, 3600.0).layout.index.row_ids.tolist() == [0, 1, 2, 3]
    assert letters.probed == rollout(0, 1)
