"""Validation of a copy: all its ranks generate, its leader judges."""

import pytest

from rljob_api.tests.builders import make_plan
from rljob_worker.engines.rollout.tests.scripted import ScriptedEngine
from rljob_worker.rewards.tests.in_process import RewardsHere
from rljob_worker.runtime.setup.resources import needs_rewards
from rljob_worker.runtime.validation import Validation
from rljob_worker.stages.tests.test_sample import FakeDataset, answering_engine

PLAN = make_plan("data.validation=[{path: val.parquet}]")
SEVERAL = make_plan("data.validation=[{path: val.parquet}]", "validation={samplesPerPrompt: 4, temperature: 1.0}")


class Tokenizer:
    def decode(self, ids, skip_special_tokens):
        return " ".join(map(str, ids))


class SomePrompts(FakeDataset):
    def __init__(self, count=5):
        super().__init__()
        self.count = count
        self.fetched = []
        """The prompts of each piece, and what was being read ahead until then."""

    def __len__(self):
        return self.count

    def fetch(self, ordinals):
        self.fetched.append((ordinals.tolist(), self.ahead))
        return super().fetch(ordinals)


def odd_is_right():
    return RewardsHere(lambda row: row["row_id"] % 2)


def validation(engine, rewards, dp_rank=1, dataset=None, plan=PLAN):
    return Validation(plan.spec, "actor", dataset or SomePrompts(), engine, rewards, Tokenizer(), dp_rank, 2)


def test_the_leader_of_a_copy_judges_the_copys_share():
    metrics, samples = validation(answering_engine(), odd_is_right(), dp_rank=0).run()
    assert metrics["validation/accuracy"].value == 0.0 and metrics["validation/accuracy"].count == 3
    assert validation(answering_engine(), odd_is_right()).run()[0]["validation/accuracy"].value == 1.0
    assert [(sample["row_id"], sample["reference"]) for sample in samples] == [(0, "0"), (2, "2")]


def test_a_peer_generates_the_same_rows_and_says_only_how_long_it_took():
    leader, peer = answering_engine(), answering_engine()
    validation(leader, odd_is_right()).run()
    metrics, samples = validation(peer, None).run()
    assert [item.row_ids.tolist() for item in (*peer.submitted, *leader.submitted)] == [[1, 3]] * 2
    assert set(metrics) == {"time/validation_seconds"} and samples == []


def test_a_large_share_is_read_and_judged_piece_by_piece_and_the_next_piece_read_ahead():
    # the second of two ranks has 1, 3, … 2053: a piece of 1,024 prompts, to 2047, and one of three
    dataset, engine = SomePrompts(2054), answering_engine()
    metrics, samples = validation(engine, odd_is_right(), dataset=dataset).run()
    last = [2049, 2051, 2053]
    assert dataset.fetched == [(list(range(1, 2049, 2)), None), (last, last)]
    assert [len(item.row_ids) for item in engine.submitted] == [1024, 3]
    assert metrics["validation/accuracy"].value == 1.0
    assert metrics["validation/accuracy"].count == metrics["validation/accuracy/s"].count == 1027
    assert [sample["row_id"] for sample in samples] == [1, 3]


def test_pieces_of_the_jobs_leases_are_the_same_for_any_number_of_ranks():
    # 5 prompts in pieces of 2: the first of two ranks has the first and the third, and the second one the other
    plan = make_plan("workerGroups=[{name: train}, {name: rollout, replicas: 2}]", "rollout.leaseRows=2")
    leader, other = SomePrompts(), SomePrompts()
    metrics, _ = validation(answering_engine(), odd_is_right(), dp_rank=0, dataset=leader, plan=plan).run()
    validation(answering_engine(), odd_is_right(), dataset=other, plan=plan).run()
    assert [piece for piece, _ in leader.fetched] == [[0, 1], [4]]
    assert [piece for piece, _ in other.fetched] == [[2, 3]]
    assert (metrics["validation/accuracy"].sum, metrics["validation/accuracy"].count) == (1.0, 3)
    # a rank without a piece says so
    nothing = SomePrompts(2)
    metrics, _ = validation(answering_engine(), odd_is_right(), dataset=nothing, plan=plan).run()
    assert [piece for piece, _ in nothing.fetched] == [[]] and metrics["validation/accuracy"].count == 0


def taking(*pieces):
    """Leases of one rank, which notes how many there are."""
    left = [*pieces, None]
    return lambda num_pieces: left.pop(0) if num_pieces == 3 else pytest.fail(f"{num_pieces} pieces")


def test_ranks_that_lease_a_validation_show_the_same_whoever_has_what():
    # 5 prompts for two ranks in three pieces of 2: the second rank has the first two
    plan = make_plan("workerGroups=[{name: train}, {name: rollout, replicas: 2}]", "rollout.leaseRows=2")
    fast, slow = SomePrompts(), SomePrompts()
    metrics, samples = validation(answering_engine(), odd_is_right(), dataset=fast, plan=plan).run(taking(0, 1))
    others, unseen = validation(answering_engine(), odd_is_right(), 0, slow, plan).run(taking(2))
    assert [piece for piece, _ in (*fast.fetched, *slow.fetched)] == [[0, 1], [2, 3], [4]]
    assert [metrics["validation/accuracy"].sum, others["validation/accuracy"].sum] == [2.0, 0.0]
    assert [sample["row_id"] for sample in samples] == [0, 1] and unseen == []
    none, _ = validation(answering_engine(), odd_is_right(), plan=plan).run(taking())
    assert none["validation/accuracy"].count == 0, "a rank that comes late says that it has nothing"


def test_without_a_size_of_leases_every_rank_finds_a_piece():
    dataset = SomePrompts(5)
    validation(answering_engine(), odd_is_right(), dataset=dataset).run(
        lambda num: None if dataset.fetched else num - 1
    )
    assert [piece for piece, _ in dataset.fetched] == [[3, 4]], "the second of two pieces of at most three"


def test_parts_of_a_validation_for_guests_are_the_whole_and_the_first_is_shown():
    # 5 prompts in 4 parts: 0 and 4, 1, 2, 3; a fifth and a sixth of 6 parts have one and none
    parts = [SomePrompts() for _ in range(4)]
    results = [
        validation(answering_engine(), odd_is_right(), dataset=dataset).run_part(number, 4)
        for number, dataset in enumerate(parts)
    ]
    assert [[piece for piece, _ in dataset.fetched] for dataset in parts] == [[[0, 4]], [[1]], [[2]], [[3]]]
    accuracies = [metrics["validation/accuracy"] for metrics, _ in results]
    assert [(item.sum, item.count) for item in accuracies] == [(0, 2), (1, 1), (0, 1), (1, 1)]
    assert [[row["row_id"] for row in samples] for _, samples in results] == [[0, 4], [], [], []]
    metrics, _ = validation(answering_engine(), odd_is_right()).run_part(5, 6)
    assert metrics["validation/accuracy"].count == 0


def test_several_responses_to_a_prompt_are_judged_together():
    # prompts 0, 2 and 4 with rows 0 to 3, 8 to 11 and 16 to 19, of which 1, 9, 10 and 19 are right;
    # answers: 3 is right of 2 2 3 2, two 5s are of 4 5 5 4 where 4 comes first, 9 of 6 7 8 9
    answers = {0: 2, 1: 3, 2: 2, 3: 2, 8: 4, 9: 5, 10: 5, 11: 4, 16: 6, 17: 7, 18: 8, 19: 9}
    engine = ScriptedEngine(lambda row_id, sampling: [answers[row_id]])
    rewards = RewardsHere(lambda row: float(row["row_id"] in (1, 9, 10, 19)))
    metrics, samples = validation(engine, rewards, dp_rank=0, plan=SEVERAL).run()
    figures = {name: (scalar.sum, scalar.count) for name, scalar in metrics.items() if "@" in name}
    # one of 2: 3 of 6 pairs, 5 of 6 and 3 of 6; the majority of 4 is 2, 4 and 6
    result = {"pass@1": 1.0, "pass@2": 11 / 6, "pass@4": 3.0, "maj@2": 0.0, "maj@4": 0.0}
    expected = {
        f"validation/{name}{end}": pytest.approx((value, 3)) for name, value in result.items() for end in ("", "/s")
    }
    assert figures == expected
    assert metrics["validation/accuracy"].sum == 4 and metrics["validation/accuracy"].count == 12
    assert [sample["row_id"] for sample in samples] == [0, 1, 2, 3, 8, 9, 10, 11]
    assert [sample["reward"] for sample in samples] == [0, 1, 0, 0, 0, 1, 1, 0]


def test_the_majority_is_of_what_the_first_reward_took_for_the_answers():
    # one prompt a rank; the texts all differ. In tens: 1 2 2 and no answer, of which the two 2s are right
    texts = {0: 10, 1: 25, 2: 27, 3: 8}
    engine = ScriptedEngine(lambda row_id, sampling: [texts[row_id]])

    def tens(row):
        result = str(int(row["response"]) // 10)
        return {"reward": float(result == "2"), "answer": None if result == "0" else result}

    metrics, _ = validation(engine, RewardsHere(tens), dp_rank=0, dataset=SomePrompts(1), plan=SEVERAL).run()
    # 1 comes first of one each; of four there are two 2s
    assert (metrics["validation/maj@2"].value, metrics["validation/maj@4"].value) == (0.0, 1.0)
    unreported, _ = validation(
        engine, RewardsHere(lambda row: tens(row)["reward"]), dp_rank=0, dataset=SomePrompts(1), plan=SEVERAL
    ).run()
    # four texts that are all different: the first counts, and is wrong
    assert unreported["validation/maj@4"].value == 0.0


def test_a_piece_has_as_many_rows_whatever_the_responses_to_a_prompt():
    dataset, engine = SomePrompts(514), answering_engine()
    validation(engine, odd_is_right(), dp_rank=0, dataset=dataset, plan=SEVERAL).run()
    assert [len(item.row_ids) for item in engine.submitted] == [1024, 4]


def test_a_rank_without_prompts_says_so():
    metrics, samples = validation(answering_engine(), odd_is_right(), dataset=SomePrompts(1)).run()
    assert metrics["validation/accuracy"].count == 0 and samples == []


@pytest.mark.parametrize(
    ("led", "needs"),
    [({"Sample"}, True), ({"Reward"}, True), ({"Rollout"}, True), ({"UpdatePolicy"}, False), (set(), False)],
)
def test_reward_processes_are_started_where_this_rank_leads_a_stage_that_judges(led, needs):
    assert needs_rewards(PLAN.spec, led) == needs


def test_without_validation_a_rollout_judges_nothing():
    assert not needs_rewards(make_plan().spec, {"Rollout"})
