"""Tests of the check that the rows and weights of a step fit into the data buffers."""

import pytest

from rljob_api.checks.validation import problems_of
from rljob_api.loading.load import parse_job
from rljob_api.tests.builders import FULL_EXAMPLE, TWO_GROUPS, make_job, problems

LONG = ("data.batchSize=256", "data.maxPromptTokens=2048", "rollout.maxResponseTokens=30720")


def only(*overrides):
    (problem,) = problems(*overrides)
    return problem


def test_a_step_that_does_not_fit_is_refused_with_the_size_that_it_takes():
    # 1,024 rows of 2,048 + 30,720 tokens on one host. A row crosses as
    #   rollout->update 24 + 8 + 8 + 8 x 30,720 + 8 + 30,720 + 8 + 4 x 30,720 = 399,416
    #     and 256 prompts of 8 x 2,048 = 16,384
    #   reference->update and advantage->update 24 + 8 + 4 x 30,720 = 122,912 each
    # so 1,024 x 645,240 + 256 x 16,384 = 634.1 MiB are put and as many got; with an eighth and 1 MiB: 1,427.7 MiB
    problem = only(*LONG)
    assert (problem.path, problem.found) == ("spec.dataBuffer.memory", '"1Gi"')
    assert problem.message == (
        "a step whose rows are all at their longest takes 1.4 GiB on a host of group train: 634.1 MiB of rows that it "
        "puts, 634.1 MiB of rows that it gets, and what arranging them costs"
    )
    assert problem.fix == "Set dataBuffer.memory to at least 2Gi; or lower data.batchSize, or add replicas."
    assert problems(*LONG, "dataBuffer.memory=2Gi") == []


def test_the_limit_is_exact():
    # 32 x 792 + 8 x 128 bytes at both ends, an eighth on top: 59,328
    needed = 59_328 + (1 << 20)
    assert problems(f"dataBuffer.memory='{needed}'") == []
    assert only(f"dataBuffer.memory='{needed - 1}'").fix.startswith("Set dataBuffer.memory to at least 2Mi; or lower")


def test_the_group_that_needs_most_is_named():
    for train, rollout, most in ((8, 1, "rollout"), (1, 8, "train")):
        groups = f"workerGroups=[{{name: train, replicas: {train}}}, {{name: rollout, replicas: {rollout}}}]"
        assert f"on a host of group {most}: " in only(*LONG, groups, "dataBuffer.memory=100Mi").message


def test_weights_that_pass_through_the_data_buffers_need_room_of_their_own():
    problem = only(*TWO_GROUPS, "dataBuffer.memory=64Mi")
    assert "KiB of rows that it gets, 64.0 MiB of weights, and what" in problem.message
    assert problem.fix == "Set dataBuffer.memory to at least 66Mi."
    assert problems(*TWO_GROUPS, "dataBuffer.memory=66Mi") == []


def test_rows_that_need_more_than_the_weights_can_be_made_fewer():
    lengths = ("data.batchSize=512", "rollout.maxResponseTokens=2048", "dataBuffer.memory=1Mi")
    assert only(*TWO_GROUPS, *lengths).fix.endswith("; or lower data.batchSize, or add replicas.")


def test_steps_that_generation_is_ahead_need_room_of_their_own():
    # 1,024 rows of one host, from generation to training, as in test_buffer_capacity. The rollout host puts to
    #   update 24 + 8 + 8 + 8 x 30,720 + 8 + 30,720 + 8 + 4 x 30,720 = 399,416, reference 24 + 8 + 8 + 8 x 30,720,
    #   advantage 24 + 8 + 30,720 and 24 + 4: 676,012 in all, and 2 x 256 prompts of 16,384: 668.2 MiB
    #   With staleness the update also reads the version of each row, 8 bytes
    puts = 1024 * (399_416 + 245_800 + 30_752 + 28) + 2 * 256 * 16_384
    enough = "workerGroups=[{name: train, replicas: 16}, {name: rollout}]"
    for staleness in (0, 1, 3):
        of_step = puts + 1024 * 8 * (staleness > 0)
        rows = -(-(staleness + 1) * of_step * 9 // 8) + (1 << 20)
        needed = max(rows + (64 << 20), -(-rows * 8 // 7))
        ahead = (*LONG, enough, f"rollout.maxStaleness={staleness}")
        assert problems(*ahead, f"dataBuffer.memory='{needed}'") == []
        assert only(*ahead, f"dataBuffer.memory='{needed - 1}'").path == "spec.dataBuffer.memory"
    problem = only(*LONG, enough, "rollout.maxStaleness=3")
    # 4 x 668.2 MiB, an eighth and 1 MiB: 2.94 GiB; 8/7 of that with the weights
    assert problem.message == (
        "with rollout.maxStaleness 3 rows of 4 steps wait, which all at their longest take 3.4 GiB on a host of group "
        "rollout: 4 x 668.2 MiB of rows that it puts, 4 x 0 B of rows that it gets, 429.7 MiB of weights, and what "
        "arranging them costs"
    )
    assert problem.fix == (
        "Set dataBuffer.memory to at least 4Gi; or lower data.batchSize or rollout.maxStaleness, or add replicas."
    )


def test_columns_whose_size_nobody_knows_are_named():
    stages = (
        "{name: rollout, run: Rollout}, {name: reward, run: Reward, after: [rollout], group: train}, "
        "{name: advantage, run: Advantage, after: [reward]}, {name: update, run: UpdatePolicy, after: [advantage]}"
    )
    apart = (*TWO_GROUPS, f"dag={{stages: [{stages}]}}", "algorithm.kl.coefficient=0")
    assert only(*apart, "dataBuffer.memory=1k").fix == (
        "Set dataBuffer.memory to at least 66Mi, and more for source, answer, whose size the job does not say."
    )


def test_rows_that_fit_memory_and_disk_together_are_accepted():
    # of the 1,427.7 MiB above 1 GiB may lie in memory; beside the rest the disk takes the largest share once more,
    # 1,024 x 399,416 bytes, 256 prompts and an eighth: 443.3 MiB
    rows, share = -(-2 * (1024 * 645_240 + 256 * 16_384) * 9 // 8), -(-(1024 * 399_416 + 256 * 16_384) * 9 // 8)
    needed = rows + (1 << 20) + share - (1 << 30)
    assert problems(*LONG, f"dataBuffer.spill={{limit: '{needed}'}}") == []
    problem = only(*LONG, f"dataBuffer.spill={{limit: '{needed - 1}'}}")
    assert (problem.path, problem.found) == ("spec.dataBuffer.spill.limit", f'"{needed - 1}"')
    assert problem.message.endswith("; on disk also as much as the largest part of it, 394.1 MiB")
    assert problem.fix.startswith("Set dataBuffer.spill.limit to at least 848Mi; or lower data.batchSize")


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_disk_that_is_asked_for_is_enough_for_every_group(replicas):
    groups = f"workerGroups=[{{name: train, replicas: {replicas}}}, {{name: rollout, replicas: 2}}]"
    asked = (*LONG, groups, "dataBuffer.memory=512Mi")
    wanted = only(*asked, "dataBuffer.spill={limit: 1}").fix.partition(";")[0]
    limit = wanted.removeprefix("Set dataBuffer.spill.limit to at least ")
    assert problems(*asked, f"dataBuffer.spill={{limit: {limit}}}") == []


def test_a_spill_file_without_room_is_refused_where_memory_is_enough():
    problem = only("dataBuffer.spill={limit: 0}")
    assert problem.path == "spec.dataBuffer.spill.limit" and problem.fix.endswith("or leave dataBuffer.spill out.")


def test_weights_stay_in_memory_however_large_the_disk():
    problem = only(*TWO_GROUPS, "dataBuffer={memory: 64Mi, spill: {limit: 1Ti}}")
    assert problem.path == "spec.dataBuffer.memory"
    assert problem.fix == "Set dataBuffer.memory to at least 65Mi."
    assert problems(*TWO_GROUPS, *LONG, "dataBuffer={memory: 65Mi, spill: {limit: 4Gi}}") == []


def test_it_is_reported_with_the_other_problems():
    result = [problem.path for problem in problems("dataBuffer.memory=1k", "rollout.temperature=0")]
    assert result == ["spec.rollout.temperature", "spec.dataBuffer.memory"]


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        # neither half a copy of a model nor a group that is not there has a size
        (("training.parallelism.tensor=2", "workerGroups=[{name: train, replicas: 3}]"), "spec.workerGroups[0]"),
        (("dag={stages: [{name: a, run: Rollout, after: [a]}]}",), "spec.dag.stages[0].after[0]"),
    ],
)
def test_a_job_without_a_layout_has_its_other_problems_reported(overrides, path):
    assert path in [problem.path for problem in problems("dataBuffer.memory=1", *overrides)]


def test_the_value_that_is_asked_for_is_enough():
    for memory in ("1k", "1Mi"):
        words = only(*TWO_GROUPS, f"dataBuffer.memory={memory}").fix
        wanted = words.removeprefix("Set dataBuffer.memory to at least ").removesuffix(".")
        assert problems(*TWO_GROUPS, f"dataBuffer.memory={wanted}") == []


def test_the_full_example_fits():
    job = parse_job(FULL_EXAMPLE)
    assert problems_of(job) == [] and problems_of(make_job()) == []
