"""Routes: what the producer and the consumer compute from the Plan agree."""

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.pipeline.meshes import Mesh
from rljob_worker.databuffer.hosts import Host, Worker, tree_children, tree_parent
from rljob_worker.databuffer.layouts import Assignment, Gathering, Layout
from rljob_worker.databuffer.routing import StageRoute, routes_of
from rljob_worker.databuffer.tests.gang import group, plan_of, stage, two_stages
from rljob_worker.minibatches import mini_batch_of
from rljob_worker.row_index import RowIndex


def index_of(numbers):
    """Rows that have one number three times."""
    ids = np.array(numbers, np.int64)
    return RowIndex(ids, ids, ids)


sizes = st.tuples(st.integers(1, 4), st.integers(1, 4))


def test_tensor_parallel_peers_share_and_only_leaders_put():
    plan = plan_of(
        [group("rollout", 2, 4, ["a"]), group("train", 1, 4, ["b"])],
        [stage("a", "rollout", Mesh(dp=4, tp=2)), stage("b", "train", Mesh(dp=2, tp=2))],
        {"a->b": ["ids"]},
    )
    route = StageRoute.of(plan, "a->b")
    assert [route.part_of(Worker("rollout", rank)) for rank in range(8)] == [0, None, 1, None, 2, None, 3, None]
    assert route.part_of(Worker("train", 0)) is None
    assert route.producer(3) == (Worker("rollout", 6), Host("rollout", 1))
    assert [route.share_of(Worker("train", rank)) for rank in range(4)] == [0, 0, 1, 1]
    assert route.readers(Host("train", 0), 1) == [2, 3]


def test_a_share_that_spans_hosts_is_fetched_by_each_of_them():
    plan = two_stages((1, 1), (2, 2), tp=4)
    route = StageRoute.of(plan, "a->b")
    assert route.consumer_hosts(0) == [Host("train", 0), Host("train", 1)]
    assert route.readers(Host("train", 1), 0) == [2, 3]


@settings(max_examples=60)
@given(sizes, sizes, st.integers(1, 24))
def test_sources_and_shares_fed_by_mirror_each_other_and_cover_every_row(made, used, batch_size):
    route = StageRoute.of(two_stages(made, used, batch_size=batch_size), "a->b")
    groups = np.arange(batch_size)
    parts = groups * route.num_parts // batch_size
    shares = route.assign(1, groups, groups, groups)
    for share in range(route.num_shares):
        mirrored = [part for part in range(route.num_parts) if share in route.shares_fed_by(part)]
        assert list(route.sources(share)) == mirrored
        assert set(parts[shares == share].tolist()) <= set(route.sources(share))


def test_rows_that_lie_anywhere_are_routed_by_layout_and_dealt_out_by_number():
    plan = plan_of(
        [group("train", 1, 2, ["a", "b"])],
        [stage("a", "train", Mesh(dp=2)).model_copy(update={"scatters_rows": True}), stage("b", "train", Mesh(dp=2))],
        {"a->b": ["ids"]},
        batch_size=4,
    )
    route = StageRoute.of(plan, "a->b")
    assert route.needs_layouts
    # rank 1 of the sampling made groups 0, 1 and 3; all the same the first half goes to rank 0
    layout = Layout.merge([Layout.of_part(0, index_of([2])), Layout.of_part(1, index_of([0, 1, 3]))])
    shares = route.assign(1, layout.index.row_ids, layout.index.group_ids, layout.index.num_tokens)
    assert Assignment(layout, shares).sources(0) == [1] and Assignment(layout, shares).sources(1) == [0, 1]


@st.composite
def steps(draw):
    """Rows of step 3 of a job with 12 prompts a step: any number of rows to a group, also none, numbered with gaps."""
    counts = draw(st.lists(st.integers(0, 6), min_size=12, max_size=12))
    rows_per_group = 6  # 2 trajectories of up to 3 rows
    rows = [
        (24 + number) * rows_per_group + index
        for number, count in enumerate(counts)
        for index in sorted(draw(st.sets(st.integers(0, rows_per_group - 1), min_size=count, max_size=count)))
    ]
    ids = np.array(rows, np.int64)
    tokens = np.array([draw(st.integers(1, 500)) for _ in rows], np.int64)
    return RowIndex(ids, ids // rows_per_group, tokens)


@settings(max_examples=60)
@given(steps(), sizes, sizes)
def test_groups_with_any_number_of_rows_go_where_their_prompts_go(index, made, used):
    route = StageRoute.of(two_stages(made, used, batch_size=12), "a->b")
    shares = route.assign(3, index.row_ids, index.group_ids, index.num_tokens)
    prompts = index.group_ids - 24
    assert shares.tolist() == (prompts * route.num_shares // 12).tolist()
    parts = prompts * route.num_parts // 12
    for share, part in zip(shares, parts, strict=True):
        assert part in route.sources(int(share)) and share in route.shares_fed_by(int(part))


@settings(max_examples=60)
@given(steps(), st.sampled_from([1, 2, 3]), st.booleans(), st.randoms(use_true_random=False))
def test_groups_with_any_number_of_rows_are_balanced_within_their_mini_batches(index, mini_batches, whole, random):
    plan = two_stages(
        (1, 2), (1, 4), batch_size=12, balance="Tokens", mini_batch_rows=24 // mini_batches, needs_groups=whole
    )
    route = StageRoute.of(plan, "a->b")
    shares = route.assign(3, index.row_ids, index.group_ids, index.num_tokens)
    order = np.array(random.sample(range(len(index)), len(index)), np.int64)
    mixed = index.take(order)
    assert route.assign(3, mixed.row_ids, mixed.group_ids, mixed.num_tokens).tolist() == shares[order].tolist()
    update = mini_batch_of(index.group_ids, step=3, batch_size=12, num_mini_batches=mini_batches, seed=plan.spec.seed)
    assert len(shares) == len(index) and set(shares.tolist()) <= {0, 1, 2, 3}
    for number in range(mini_batches):
        inside = update == number
        loads = np.bincount(shares[inside], index.num_tokens[inside], minlength=4)
        of_group = np.bincount(index.group_ids[inside], index.num_tokens[inside], minlength=1)
        largest = max(of_group if whole else index.num_tokens[inside], default=0)
        assert loads.max() <= loads.mean() + 0.75 * largest + 1e-6
    if whole:
        assert all(len(set(shares[index.group_ids == group])) == 1 for group in np.unique(index.group_ids))


def test_metrics_and_verdict_connect_everybody_with_the_lead():
    plan = two_stages((2, 2), (1, 3))
    routes = routes_of(plan)
    metrics = routes.rows["metrics"]
    assert metrics.num_parts == 7
    assert [metrics.producer(part)[0] for part in (0, 3, 4, 6)] == [
        Worker("rollout", 0),
        Worker("rollout", 3),
        Worker("train", 0),
        Worker("train", 2),
    ]
    assert metrics.part_of(Worker("train", 2)) == 6
    verdict = routes.broadcasts["verdict"]
    assert verdict.hosts == (Host("train", 0), Host("rollout", 0), Host("rollout", 1))
    assert verdict.readers(Host("train", 0)) == [1, 2]  # the lead knows what it says
    assert verdict.readers(Host("rollout", 1)) == [2, 3]


@given(st.integers(1, 5000), st.integers(1, 40))
def test_a_tree_has_one_parent_per_member_and_no_member_has_too_many_children(size, fan_out):
    for position in range(1, size):
        parent = tree_parent(position, fan_out)
        assert parent is not None and position in tree_children(parent, size, fan_out)
    assert max(len(tree_children(position, size, fan_out)) for position in range(size)) <= fan_out


@settings(max_examples=50)
@given(st.integers(1, 12), st.integers(0, 8), st.integers(1, 4), st.randoms(use_true_random=False))
def test_layouts_travel_up_in_any_order_and_the_root_has_all_of_them(producers, consumers, fan_out, random):
    size = producers + consumers
    members = [
        Gathering(i, size, producers, frozenset({i} if i < producers else ()), fan_out=fan_out) for i in range(size)
    ]
    messages = [(i, "part", i, Layout.of_part(i, index_of([10 * i, 10 * i + 1]))) for i in range(producers)]
    complete = None
    while messages:
        to, kind, number, layout = messages.pop(random.randrange(len(messages)))
        merged = members[to].add_part(number, layout) if kind == "part" else members[to].add_child(number, layout)
        if merged is not None:
            parent = tree_parent(to, fan_out)
            if parent is None:
                assert complete is None
                complete = merged
            else:
                messages.append((parent, "child", to, Layout.from_bytes(merged.to_bytes())))
    assert complete is not None
    assert complete.parts.tolist() == [i for i in range(producers) for _ in range(2)]
    assert complete.index.row_ids.tolist() == [10 * i + k for i in range(producers) for k in range(2)]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=20))
def test_an_assignment_names_a_source_even_for_a_share_without_rows(rows):
    layout = Layout.merge([Layout.of_part(part, index_of(range(sum(p == part for p, _ in rows)))) for part in range(4)])
    shares = np.array([share for part in range(4) for p, share in rows if p == part], np.int64)
    assignment = Assignment(layout, shares)
    for share in range(5):
        assert assignment.sources(share) == [
            part for part in range(4) if share in assignment.shares_fed_by(part, num_shares=5)
        ]


def test_routes_of_a_large_job_are_small():
    plan = two_stages((512, 8), (512, 8), batch_size=4096, balance="Tokens")
    assert len(json.dumps(plan.to_json())) < 2**20
    route = routes_of(plan).rows["a->b"]
    assert len(route.participants) == 1024
