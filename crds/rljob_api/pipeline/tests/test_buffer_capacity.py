"""Tests of how much room rows and weights take in the data buffers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.catalogue.column_widths import INDEX_BYTES, is_known, known_bytes, prompt_bytes
from rljob_api.pipeline.buffer_capacity import (
    CONTROL_BYTES,
    WEIGHT_SLOTS_BYTES,
    BufferCapacity,
    capacity_of,
    layouts_of,
    most_copies,
    most_leaders,
    weights_share,
)
from rljob_api.pipeline.meshes import Mesh
from rljob_api.pipeline.resolution import Resolution, assign_groups
from rljob_api.tests.builders import PPO, TWO_GROUPS, make_job

MI = 1 << 20
SAMPLE = "algorithm={name: DAPO, groupSize: 4, kl: {coefficient: 0}}"


def rooms(*overrides):
    resolution = Resolution(make_job(*overrides, "dataBuffer.memory=1Ti").spec)
    layouts = layouts_of(resolution, assign_groups(resolution))
    return {group.name: capacity_of(resolution, group.name, layouts) for group in resolution.spec.worker_groups}


def group(name="train", replicas=1, count=1):
    return f"{{name: {name}, replicas: {replicas}, accelerator: {{profile: cpu, count: {count}}}}}"


def test_the_sizes_that_data_buffers_count_on():
    assert (WEIGHT_SLOTS_BYTES, CONTROL_BYTES) == (64 * MI, MI)


def test_bytes_of_a_row_of_known_columns():
    # index 24 + offset of the prompt 8 + response (8 + 32 x 8) + mask (8 + 32 x 1) + reward 4; a prompt has 16 x 8
    columns = ("prompt_ids", "response_ids", "response_mask", "rewards")
    assert known_bytes(columns, 32) == 24 + 8 + 264 + 40 + 4
    assert prompt_bytes(columns, 16) == PROMPT and prompt_bytes(columns[1:], 16) == 0
    assert known_bytes((), 32) == known_bytes(("answer", "style"), 32) == INDEX_BYTES == 24
    # every column alone, 32 tokens: ids and float64 8 a token, masks 1, float32 4; then the fixed ones
    sizes = {name: known_bytes((name,), 32) - 24 for name in COLUMNS}
    assert sizes == COLUMNS
    assert all(map(is_known, COLUMNS)) and not is_known("answer") and not is_known("source")


COLUMNS = {
    "prompt_ids": 8,
    "response_ids": 8 + 32 * 8,
    "agent_ids": 8 + 32 * 8,
    "turn_ids": 8 + 32 * 8,
    "response_mask": 8 + 32,
    "loss_mask": 8 + 32,
    "rollout_log_probs": 8 + 32 * 4,
    "token_versions": 8 + 32 * 8,
    "old_log_probs": 8 + 32 * 4,
    "ref_log_probs": 8 + 32 * 4,
    "values": 8 + 32 * 4,
    "step_rewards": 8 + 32 * 8,
    "advantages": 8 + 32 * 4,
    "returns": 8 + 32 * 4,
    "rewards": 4,
    "truncated": 1,
    "policy_version": 8,
    "last_policy_version": 8,
    "baseline_rewards": 8,
    "row_weights": 8,
}


PROMPT = 16 * 8
"""Bytes of a prompt, stored once for the rows of its group."""


def test_a_colocated_job_counts_its_balanced_update_at_both_ends():
    # 32 rows of 16 + 32 tokens with 8 prompts on one worker; only the update is balanced, so only what it gets crosses:
    #   rollout->update    24 + prompt_ids 8 + response_ids 264 + response_mask 40 + rollout_log_probs 136 = 472
    #   reference->update  24 + ref_log_probs 136 = 160;  advantage->update  24 + advantages 136 = 160
    everything, update = 32 * 792 + 8 * PROMPT, 32 * 472 + 8 * PROMPT
    assert rooms() == {"train": BufferCapacity(puts=everything, maps=everything, largest=update)}
    assert rooms()["train"].total == everything * 2 * 9 // 8 + MI


def test_rows_are_counted_as_long_as_prompt_and_response_may_be_together():
    # 40 tokens: a prompt of 16 and 24 more, or of 8 and a response of 32. The second is more: 32 responses to 8 prompts
    together = rooms("rollout.maxSequenceTokens=40")["train"]
    assert together.puts == 32 * 792 + 8 * PROMPT // 2 and together.largest == 32 * 472 + 8 * PROMPT // 2


def test_hosts_share_the_rows():
    four_hosts_of_two = f"workerGroups=[{group(replicas=4, count=2)}]"
    # a worker makes the 4 rows of one prompt; balanced one by one, the 4 that it gets may be of 4
    assert rooms(four_hosts_of_two) == {
        "train": BufferCapacity(puts=8 * 792 + 2 * PROMPT, maps=8 * 792 + 8 * PROMPT, largest=4 * 472 + 4 * PROMPT)
    }


def test_without_balance_a_colocated_job_needs_almost_nothing():
    stages = (
        "{name: rollout, run: Rollout}, {name: reward, run: Reward, after: [rollout]}, "
        "{name: reference, run: LogProbs, models: [reference], after: [rollout]}, "
        "{name: advantage, run: Advantage, after: [reward]}, "
        "{name: update, run: UpdatePolicy, after: [advantage, reference]}"
    )
    assert rooms(f"dag={{stages: [{stages}]}}") == {"train": BufferCapacity()}
    assert BufferCapacity().total == CONTROL_BYTES


def test_groups_apart_hold_their_own_ends_and_the_weights():
    # 4 rollout hosts put 8 rows each, or twice as many, as ranks take leases: to reference and update 24 + 8 + 264
    # (+ 176) with 2 prompts, to advantage 24 + 40 of the mask and 24 + 4 of the rewards. 2 training hosts map 16 rows
    # of that, of 4 prompts in the reference and of 8 in the update, and of the update's two edges within the group (160
    # each) they put and map 16 rows.
    enters = 296 + 472 + 64 + 28
    assert rooms(*TWO_GROUPS) == {
        "train": BufferCapacity(
            puts=16 * 320,
            maps=16 * (enters + 320) + (4 + 8) * PROMPT,
            largest=16 * 472 + 8 * PROMPT,
            has_weights=True,
        ),
        "rollout": BufferCapacity(
            puts=2 * (8 * enters + (2 + 2) * PROMPT), maps=0, largest=2 * (8 * 472 + 2 * PROMPT), has_weights=True
        ),
    }


def test_rows_of_all_steps_under_way_have_room():
    one, three = rooms(*TWO_GROUPS), rooms(*TWO_GROUPS, "rollout.maxStaleness=2")
    # versions come with the rows of the update: 8 bytes for each of 16 rows that a training host maps, and of 8 that a
    # rollout host puts, or twice as many
    train, rollout = one["train"], one["rollout"]
    more = {"largest": train.largest + 16 * 8, "num_steps": 3}
    assert three["train"] == replace(train, maps=train.maps + 16 * 8, **more)
    more = {"largest": rollout.largest + 16 * 8, "num_steps": 3}
    assert three["rollout"] == replace(rollout, puts=rollout.puts + 16 * 8, **more)
    # 100 + 60 bytes of a step: 180 with an eighth, 540 of three steps; the largest part, 90 with an eighth, once more
    steps = BufferCapacity(100, 60, 80, num_steps=3)
    assert (BufferCapacity(100, 60, 80).total, steps.total) == (MI + 180, MI + 540)
    assert steps.least_spill(MI) == 540 + 90
    assert (steps.rows, steps.rows_of_a_step) == (MI + 540, MI + 180)


def test_a_host_has_room_for_the_leases_that_the_job_makes():
    # groups of 4: 22 rows are 6 groups, 24 of 32 rows, where twice a part is 16; of 40 rows all 32 are one lease
    for lease_rows, rows in ((1, 16), (16, 16), (17, 20), (22, 24), (32, 32), (40, 32)):
        room = rooms(*TWO_GROUPS, f"rollout.leaseRows={lease_rows}")["rollout"]
        assert room.largest == rows * 472 + rows // 4 * PROMPT


def test_groups_of_any_rank_may_be_complete_in_a_step():
    # a host has 8 of 32 rows and room for 32, four times that, where it has room for 16 of rows that are not partial;
    # over its largest edge a row takes 8 bytes more, of the offset of versions: 48 response tokens
    whole, partial = (
        rooms(*TWO_GROUPS, *more)["rollout"] for more in ([], ["rollout.partial={tokensPerRound: 8, maxCarries: 3}"])
    )
    assert partial.largest > 1.9 * whole.largest and partial.puts > 1.9 * whole.puts


def test_a_host_without_weights_or_rows_of_others_needs_no_room_for_them():
    three = f"workerGroups=[{group()}, {group('rollout')}, {group('scores')}]"
    stages = (
        "{name: rollout, run: Rollout}, {name: reward, run: Reward, after: [rollout]}, "
        "{name: reference, run: LogProbs, models: [reference], after: [rollout], group: scores}, "
        "{name: advantage, run: Advantage, after: [reward], group: train}, "
        "{name: update, run: UpdatePolicy, after: [advantage, reference], group: train}"
    )
    result = rooms(three, f"dag={{stages: [{stages}]}}")
    assert result["scores"] == BufferCapacity(puts=32 * 160, maps=32 * 296 + 8 * PROMPT, largest=32 * 296 + 8 * PROMPT)
    assert result["train"].weights == result["rollout"].weights == 64 * MI


def test_a_critic_stays_where_it_is_trained():
    assert rooms(*PPO)["train"].weights == 0


def test_rows_that_lie_where_they_were_made_get_twice_their_part():
    # 8 workers on 4 hosts: a host's part of 32 rows is 8. Two edges leave Sample: to advantage with rewards, mask and
    # truncated (DAPO reads it for masking), to update with ids, mask and log-probs. A host has made 2 prompts, and
    # may get 8 with its 8 balanced rows; alone it has the 8 that there are, and each of its two workers may get all
    hosts = f"workerGroups=[{group(replicas=4, count=2)}]"
    alone = f"workerGroups=[{group(replicas=1, count=2)}]"
    uneven, all_here = rooms(SAMPLE, hosts)["train"], rooms(SAMPLE, alone)["train"]
    enters = uneven.maps - 8 * ADVANTAGES - (8 - 2) * PROMPT
    assert uneven.puts - 8 * ADVANTAGES == 2 * enters > 0
    rows = 4 * (uneven.maps - 8 * PROMPT)
    assert (all_here.puts, all_here.maps) == (rows + 8 * PROMPT, rows + 16 * PROMPT), "never more than all rows"


ADVANTAGES = 24 + 8 + 4 * 32
"""Bytes of a row of advantage->update."""


def test_columns_of_unknown_size_are_named_once_and_not_counted():
    apart = ("dag={stages: ["
        "{name: rollout, run: Rollout, group: rollout}, {name: reward, run: Reward, after: [rollout], group: train}, "
        "{name: mine, run: 'm:f', after: [rollout], reads: [answer], writes: [x], group: train}, "
        "{name: yours, run: 'm:f', after: [mine], reads: [x], writes: [y], group: rollout}, "
        "{name: advantage, run: Advantage, after: [reward], group: train}, "
        "{name: update, run: UpdatePolicy, after: [advantage], group: train}]}")  # fmt: skip
    result = rooms("algorithm.kl.coefficient=0", *TWO_GROUPS, apart)
    assert result["rollout"].uncounted == result["train"].uncounted == ("source", "answer", "x")
    # the part of reward: 24 + prompt 8 + response 264; of mine: 24; to advantage a mask; to update ids,
    # mask and log-probs; of all that twice, as it lies where leases made it
    assert result["rollout"].puts == 2 * (8 * (296 + 24 + 64 + 472) + (2 + 2) * PROMPT)
    assert result["rollout"].maps == 8 * 24


def test_rows_are_counted_at_their_longest():
    # 64 rows of 4,096 tokens and 1,024 of 32,768 on one host of eight, half prompt and half response:
    # per row 24 x 3 of index, prompt 8, response 8 + 8 n, mask 8 + n, three float32 columns 3 x (8 + 4 n); 8 n for each
    # prompt, one of four rows
    host = f"workerGroups=[{group(count=8)}]"

    def puts(rows, tokens):
        lengths = (f"data.maxPromptTokens={tokens // 2}", f"rollout.maxResponseTokens={tokens // 2}")
        return rooms(host, f"data.batchSize={rows // 4}", *lengths)["train"].puts

    assert puts(64, 4096) == 64 * (72 + 6 * 8 + 21 * 2048) + 16 * 8 * 2048
    assert puts(1024, 32768) == 1024 * (72 + 6 * 8 + 21 * 16384) + 256 * 8 * 16384


def test_rows_that_lie_where_they_were_made_may_all_be_of_one_worker():
    hosts = f"workerGroups=[{group(replicas=4, count=2)}]"
    # over the edge to update: of four hosts' 32 rows one worker may have made 16, twice a host's part
    to_update = 24 + 8 + 264 + 40 + 136
    assert rooms(SAMPLE, hosts)["train"].largest == 16 * to_update + 4 * PROMPT


@given(
    st.integers(1, 10**6),
    st.integers(1, 10**6),
    st.integers(1, 10**6),
    st.booleans(),
    st.integers(0, 10**6),
    st.integers(1, 3),
)
def test_disk_takes_the_place_of_memory_but_for_the_weights(puts, maps, largest, has_weights, more, num_steps):
    room = BufferCapacity(puts, maps, min(largest, puts + maps), has_weights, num_steps=num_steps)
    memory = room.least_memory + more
    needed = room.least_spill(memory)
    if memory >= room.total:
        assert needed == 0
        return
    rows = room.total - room.weights
    assert memory - (weights_share(memory) if has_weights else 0) + needed == rows + -(-room.largest * 9 // 8)


def test_parts_of_a_row_are_rounded_up():
    # 2 prompts x 3 answers on 4 workers cannot be shared, which another check says; here it is 4 rows, 2 prompts each
    resolution = Resolution(
        make_job().spec.model_copy(
            update={"worker_groups": make_job(f"workerGroups=[{group(count=4)}]").spec.worker_groups}
        )
    )
    spec = resolution.spec
    odd = spec.model_copy(update={"data": spec.data.model_copy(update={"batch_size": 5})})
    resolution = Resolution(odd.model_copy(update={"algorithm": spec.algorithm.model_copy(update={"group_size": 3})}))
    assert capacity_of(resolution, "train", layouts_of(resolution, assign_groups(resolution))).puts == 4 * (
        4 * 792 + 2 * PROMPT
    )
    assert BufferCapacity(puts=1).total == MI + 2 and BufferCapacity(maps=8).total == MI + 9
    # 64 MiB beside little; beside 7 GiB less 1 MiB of control, 8/9 of which is rows, one part in eight of the whole
    assert BufferCapacity(has_weights=True).total == 65 * MI
    large = BufferCapacity(puts=(7168 * MI - MI) * 8 // 9, has_weights=True)
    assert (large.total, large.weights) == (8192 * MI, 1024 * MI)


def test_stages_without_a_place_are_left_out():
    resolution = Resolution(make_job().spec)
    assert layouts_of(resolution, dict.fromkeys(resolution.stages)) == {}
    assert layouts_of(resolution, dict.fromkeys(resolution.stages, "elsewhere")) == {}
    spec = resolution.spec
    pairs = spec.training.parallelism.model_copy(update={"tensor": 2})
    resolution = Resolution(
        spec.model_copy(update={"training": spec.training.model_copy(update={"parallelism": pairs})})
    )
    assert sorted(layouts_of(resolution, assign_groups(resolution))) == ["advantage", "reward", "rollout"], (
        "not half a copy"
    )


def parallel(spec, section, **degrees):
    """The spec with these degrees, which the checks may refuse as not built yet."""
    old = getattr(spec, section)
    return spec.model_copy(
        update={section: old.model_copy(update={"parallelism": old.parallelism.model_copy(update=degrees)})}
    )


def test_a_stage_is_laid_out_like_its_engine():
    spec = make_job(f"workerGroups=[{group(replicas=2, count=2)}]").spec
    resolution = Resolution(parallel(parallel(spec, "training", tensor=2, context=2), "rollout", tensor=2))
    layouts = layouts_of(resolution, assign_groups(resolution))
    assert layouts["rollout"].mesh == Mesh(dp=2, tp=2)
    assert layouts["reference"].mesh == layouts["update"].mesh == Mesh(dp=1, tp=2, cp=2)
    assert layouts["reward"].mesh == layouts["advantage"].mesh == Mesh(dp=4)
    assert [layouts[name].balance for name in ("update", "advantage")] == ["Tokens", "None"]
    spec = make_job(f"workerGroups=[{group(count=2)}]").spec
    resolution = Resolution(parallel(parallel(spec, "training", tensor=2, context=2), "rollout", tensor=4))
    assert sorted(layouts_of(resolution, assign_groups(resolution))) == ["advantage", "reward"], (
        "2 workers are half a copy"
    )


@pytest.mark.parametrize(
    ("tp", "dp", "workers", "leaders", "copies"),
    [
        (1, 16, 8, 8, 8),
        (4, 4, 8, 2, 2),
        (16, 2, 8, 1, 1),
        (4, 3, 6, 2, 2),  # ranks 0-3 4-5 | 6-7 8-11
        (3, 4, 2, 1, 2),  # 0-1 | 2, 3 | 4-5 | 6-7 | 8, 9 | 10-11
        (3, 2, 2, 1, 2),
        (6, 2, 4, 1, 2),  # 0-3 | 4-5, 6-7 | 8-11
        (4, 5, 10, 3, 3),  # 0-3 4-7 8-9 | 10-11 12-15 16-19
    ],
)
def test_copies_on_the_host_that_has_most(tp, dp, workers, leaders, copies):
    mesh = Mesh(dp=dp, tp=tp)
    assert (most_leaders(mesh, workers), most_copies(mesh, workers)) == (leaders, copies)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 16))
def test_copies_are_those_that_the_ranks_of_a_host_have(copy, workers, repeats):
    mesh = Mesh(dp=workers * repeats, tp=copy)
    hosts = [range(first, first + workers) for first in range(0, mesh.size, workers)]
    assert most_copies(mesh, workers) == max(len({mesh.dp_rank(rank) for rank in host}) for host in hosts)
    assert most_leaders(mesh, workers) == max(sum(mesh.is_row_leader(rank) for rank in host) for host in hosts)


@given(st.integers(1, 6), st.integers(0, 3), st.integers(0, 3))
def test_more_hosts_never_need_more_room_each(prompts, doublings, workers):
    def room(replicas):
        shape = f"workerGroups=[{group(replicas=replicas, count=2**workers)}]"
        return rooms(shape, f"data.batchSize={prompts * 64}")["train"]

    few, many = room(2**doublings // 2 or 1), room(2**doublings)
    assert many.total <= few.total
    if doublings:
        assert many.puts * 2 == few.puts
        assert few.maps <= many.maps * 2 < 2 * few.maps, "prompts of the same group may lie on both"


def test_leases_have_room_on_those_that_make_them_and_those_that_own_them():
    guests = "{name: rollout, accelerator: {count: 2}, elastic: {min: 1, max: 9}}"
    fields = (f"workerGroups=[{group(count=2)}, {guests}]", "rollout.maxStaleness=1")
    # 8 prompts x 4 answers on two trainers of one host; a guest has two copies
    room = {lease: rooms(*fields, *lease) for lease in ((), ("rollout.leaseRows=9",))}
    row = known_bytes(DELIVERED, 32)
    part = 16 * row + 4 * PROMPT
    for rows in room.values():
        assert rows["train"].leases == 2 * part
    # whole groups of 4 in a lease, two leases of each copy; without leaseRows one worker's part
    assert room["rollout.leaseRows=9",]["rollout"].leases == 2 * 2 * (8 * row + 2 * PROMPT)
    assert room[()]["rollout"].leases == 2 * 2 * part
    assert room[()]["rollout"].holds_versions and not room[()]["train"].holds_versions
    # one step of leases, whatever the staleness
    stale = rooms(*fields[:1], "rollout.maxStaleness=3")
    assert stale["train"].leases == 2 * part and stale["rollout"].rows == -(-4 * part * 9 // 8) + CONTROL_BYTES


def test_pods_that_hold_versions_give_half_of_their_arena_for_them():
    assert BufferCapacity(leases=8, has_weights=True, holds_versions=True).total == 65 * MI + 9
    large = BufferCapacity(leases=504 * MI, has_weights=True, holds_versions=True)  # 567 MiB, and 1 of control
    assert (large.total, large.weights) == (1136 * MI, 568 * MI)
    assert [weights_share(size * MI, holds_versions=True) for size in (96, 4096)] == [48 * MI, 2048 * MI]


DELIVERED = (
    "prompt_ids",
    "response_ids",
    "response_mask",
    "rollout_log_probs",
    "token_versions",
    "truncated",
    "policy_version",
    "last_policy_version",
    "rewards",
)
"""Columns of a row that a guest makes, as far as their size is known."""
