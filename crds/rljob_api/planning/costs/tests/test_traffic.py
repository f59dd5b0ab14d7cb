"""Tests of the planned traffic of rows between workers."""

import pytest

from rljob_api.catalogue.column_widths import INDEX_BYTES
from rljob_api.planning.advice import warnings_of
from rljob_api.planning.costs.traffic import EdgeTraffic, expected_bytes, group_bytes, planned_row_bytes
from rljob_api.tests.builders import ROLLOUT, TWO_GROUPS, dag, make_plan
from rljob_api.vocabulary.quantity import covering_quantity, format_bytes, parse_quantity


def test_bytes_of_a_row_and_of_a_group():
    columns = ("prompt_ids", "response_ids", "response_mask", "rewards")
    # index 24 + offset of the prompt 8 + response (8 + 32 x 8) + mask (8 + 32 x 1) + reward 4
    assert planned_row_bytes(columns, 32) == 24 + 8 + 264 + 40 + 4
    assert group_bytes(columns, 16) == 16 * 8
    assert planned_row_bytes((), 32) == INDEX_BYTES
    assert group_bytes((), 16) == 0
    # text of the data: an offset a row, 256 guessed a group; a column nobody knows: 8
    assert planned_row_bytes(("answer", "style"), 1, frozenset({"answer"})) == 24 + 8 + 8
    assert group_bytes(("answer", "style"), 1, frozenset({"answer"})) == 256


def test_routes_are_guessed_by_the_token():
    # 48 layers of 8 experts: of each response token and, once for a group, of each of its prompt
    columns = ("prompt_routed_experts", "routed_experts")
    assert planned_row_bytes(columns, 32) == INDEX_BYTES + 8 + 8 + 384 * 32
    assert group_bytes(columns, 16) == 384 * 16
    plan = make_plan("training.routerReplay=Rollout", *TWO_GROUPS)
    assert set(columns) <= set(plan.stage("rollout").writes)
    worst = expected_bytes(plan)["rollout->update"].worst
    assert worst - expected_bytes(make_plan(*TWO_GROUPS))["rollout->update"].worst == 32 * (16 + 384 * (32 + 16))


def test_local_edges_move_nothing():
    assert expected_bytes(make_plan())["rollout->reward"] == EdgeTraffic(0, 0, 0)


def test_a_buffer_edge_counts_every_row_of_the_step():
    # 8 prompts x 4 responses; ref_log_probs: 24 + 8 + 4 x tokens, with 1, 16 and 32 response tokens
    traffic = expected_bytes(make_plan())["reference->update"]
    assert traffic == EdgeTraffic(32 * 36, 32 * 96, 32 * 160)


def test_a_prompt_crosses_once_for_its_group_where_groups_stay_together():
    # 8 prompts of up to 16 tokens x 4 responses of up to 32; a row: 24 + offset of the prompt 8 + 8 + 8 x tokens
    traffic = expected_bytes(make_plan(*TWO_GROUPS))["rollout->reference"]
    assert traffic == EdgeTraffic(32 * 48 + 8 * 8, 32 * (40 + 128) + 8 * 64, 32 * (40 + 256) + 8 * 128)


def test_rows_that_are_dealt_out_one_by_one_may_each_take_their_prompt_along():
    # the same, the response mask, 8 + tokens, and rollout_log_probs, 8 + 4 x tokens; at worst 32 copies of a prompt
    traffic = expected_bytes(make_plan(*TWO_GROUPS))["rollout->update"]
    assert traffic == EdgeTraffic(32 * 69 + 8 * 8, 32 * (56 + 208) + 8 * 64, 32 * (56 + 416) + 32 * 128)


def test_warnings_name_what_was_probably_not_meant():
    def only(*overrides):
        (warning,) = warnings_of(make_plan(*overrides))
        return warning

    pipeline = dag(
        ROLLOUT,
        "name: reward, run: Reward, after: [rollout]",
        "name: reference, run: LogProbs, models: [reference], after: [rollout]",
        "name: advantage, run: Advantage, after: [reward]",
        "name: update, run: UpdatePolicy, after: [advantage, reference]",
    )
    assert "old_log_probs" in only(pipeline, "training.miniBatchRows=16")
    assert "K3Weighted" in only("algorithm.kl.estimator=K1")
    assert "warmupSteps" in only("training.warmupSteps=10")
    assert "reference stays at models/tiny" in only("checkpoint.initFrom=runs/other")
    listed = "models=[{name: actor, path: models/tiny}, {name: reference, path: runs/other}]"
    assert warnings_of(make_plan(listed, "checkpoint.initFrom=runs/other")) == []
    pods = ("data.batchSize=24", "training.parallelism.tensor=2")
    three = "workerGroups=[{name: train, replicas: 2, accelerator: {count: 3}}]"
    assert "tensor 2 does not divide the 3 workers of a pod of train" in only(*pods, three)
    assert warnings_of(make_plan(*pods, three.replace("count: 3", "count: 4"))) == []
    expert = ("data.batchSize=24", "training.parallelism.expert=2")
    assert "some of 2 workers that send each other tokens in every layer" in only(*expert, three)
    assert warnings_of(make_plan(*expert, three.replace("count: 3", "count: 4"))) == []
    torn = "workerGroups=[{name: train, replicas: 4, accelerator: {count: 6}}]"
    replicas = ("data.batchSize=24", "training.parallelism.replicate=%d")
    # replicas of 8 workers on pods of 6; of 12 on two, or of 3 on half of one
    assert "replicas of 8 workers end in the middle of pods of train, which have 6" in only(
        torn, replicas[0], replicas[1] % 3
    )
    assert warnings_of(make_plan(torn, replicas[0], replicas[1] % 2)) == []
    assert warnings_of(make_plan(torn, replicas[0], replicas[1] % 8)) == []
    assert "data.train[0].weight changes nothing" in only("data.train.0.weight=2")
    assert "data.train[1].weight is 0: nothing is drawn from b.jsonl" in only(
        "data.train=[{path: a.jsonl, weight: 1}, {path: b.jsonl, weight: 0}]"
    )
    assert warnings_of(make_plan("data.train=[{path: a.jsonl, weight: 1}, {path: b.jsonl, weight: 2}]")) == []
    lonely = pipeline[:-2] + ", {name: mine, run: 'm:f', after: [rollout], writes: [x]}]}"
    assert "no stage reads x" in only(lonely)


@pytest.mark.parametrize(
    ("text", "count"),
    [("16Gi", 2**34), ("1.5Ki", 1536), ("500M", 5 * 10**8), ("3k", 3000), ("7", 7), ("2Ti", 2**41), ("1Mi", 2**20)],
)
def test_quantities(text, count):
    assert parse_quantity(text) == count


def test_a_quantity_that_covers_so_many_bytes():
    result = [covering_quantity(n) for n in (0, 1, 2**20, 2**20 + 1, 1023 * 2**20, 1023 * 2**20 + 1, 2**30 + 1, 2**41)]
    assert result == ["0Mi", "1Mi", "1Mi", "2Mi", "1023Mi", "1Gi", "2Gi", "2048Gi"]


@pytest.mark.parametrize("text", ["", "Gi", "16gi", "1 Gi", "-1Gi", "1e3"])
def test_no_quantities(text):
    with pytest.raises(ValueError, match="not a quantity"):
        parse_quantity(text)


def test_bytes_for_people():
    assert [format_bytes(n) for n in (0, 1023, 1536, 2**30, 3 * 2**40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "1.0 GiB",
        "3.0 TiB",
    ]


def test_bounded_rows_move_less_than_the_longest_prompt_with_the_longest_response():
    # 8 prompts x 4 responses; a row: 40 + 8 x tokens. Of 40 tokens: prompts of 16 and responses of 24, 8 x 128 and
    # 32 x 232, or prompts of 8 and responses of 32, 8 x 64 and 32 x 296, which are more
    traffic = expected_bytes(make_plan(*TWO_GROUPS, "rollout.maxSequenceTokens=40"))["rollout->reference"]
    assert traffic.worst == 32 * 296 + 8 * 64
