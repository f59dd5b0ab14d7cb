"""Conversations with `rollout.partial`: a trajectory that has not ended goes on in a later round, whatever happens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_worker.checkpoint.writer import StageRows, packed_rows, read_rows
from rljob_worker.conversations.journal.files import JournalFolder
from rljob_worker.conversations.playing.tests.playing import FunctionWorld
from rljob_worker.conversations.world import SharedWorld
from rljob_worker.errors import InvalidJob
from rljob_worker.stages import build_stage
from rljob_worker.stages.stage import StageContext
from rljob_worker.stages.tests.test_conversations import staged, text
from rljob_worker.stages.tests.test_partial_rows import GROUP_SIZE, Expected

GRPO = "algorithm={name: GRPO, groupSize: 2}"
DAPO = "algorithm={name: DAPO, groupSize: 2, sampling: {maxRounds: 9}}"
TURN = 3
"""Tokens of a turn at most."""


class Walk:
    """Plays turns of 3 tokens and a rest until a trajectory has as many as its length says; a maze that remembers
    answers between them."""

    def __init__(self, lengths, fails=lambda task: False):
        self.lengths, self.fails = lengths, fails

    async def __call__(self, task, policy, world):
        length = self.lengths[task.trajectory % len(self.lengths)]
        await policy.chat()
        for turn in range(1, -(-length // TURN)):
            answer = await world.call("maze", {"by": turn}, method="step")
            world.reward(answer.value / 100)
            await policy.chat([{"role": "user", "content": str(answer.value)}])
        if self.fails(task):
            world.fail("lost", "no way out")
        world.reward(task.member + task.group / 1000)


def said(lengths):
    """What the engine says in a turn of a row."""

    def answer(row_id, turn, before):
        left = lengths[row_id % len(lengths)] - TURN * (turn % (1 << 24))
        return "ab"[turn % 2] * (min(TURN, left) - 1) + "~"

    return answer


def maze():
    """Adds up what each session asks for."""
    places: dict[str, int] = {}

    def step(session, target, method, arguments):
        places[session] = places.get(session, 0) + arguments["by"]
        return places[session]

    return FunctionWorld(step)


class Rank:
    """The stage on one rank, with weights of its step."""

    def __init__(self, lengths, algorithm=GRPO, *, quantum=4, carries=3, journals=None, run=None, rows=1):
        self.world = maze()
        self.plan, self.resources = staged(
            run or Walk(lengths), algorithm, "data.batchSize=4", "rollout.maxResponseTokens=600",
            f"rollout.partial={{tokensPerRound: {quantum}, maxCarries: {carries}}}",
            conversation=f"columns: [place], maxTurns: 10, maxFailed: 0.5, maxRows: {rows}",
            journals=journals, rewards=lambda row: row["environment_reward"], world=self.world,
        )  # fmt: skip
        self.engine = self.resources.rollout_engines["actor"]
        self.engine.answer = said(lengths)
        conversations = self.resources.conversations["actor"].conversations
        conversations.shared = SharedWorld(stateful=frozenset({"maze"}))
        self.stage = build_stage(self.plan.stages[0], self.resources)

    def run(self, step):
        """Rows and figures of a step."""
        self.engine.version = step - 1
        context = StageContext(step, 3, self.plan.spec, text, lambda tensor: tensor, 0, 1)
        result = self.stage.run(None, context)
        self.samples = result.samples
        return result.batch, {name: scalar.value for name, scalar in result.metrics.items()}

    def save(self, directory):
        rows = self.stage.rows()
        if rows is not None:
            name, content = packed_rows(StageRows("rollout", 0, rows))
            (directory / name).write_bytes(content)
        return self.stage.state()

    def load(self, directory, state):
        self.stage.load_state(state)
        self.stage.load_rows(read_rows(directory, "rollout", 0, 1))

    def close(self):
        self.resources.conversations["actor"].close()


def contents(batch):
    names = ("prompt_ids", "response_ids", "response_mask", "rollout_log_probs", "token_versions", "turn_ids")
    names += ("environment_reward", "truncated", "kept", "messages", "policy_version", "last_policy_version")
    return {name: batch[name].to_list() for name in names if name in batch}


def as_lists(batch):
    return {name: [np.asarray(value).tolist() for value in values] for name, values in contents(batch).items()}


@settings(max_examples=8)
@given(
    lengths=st.lists(st.integers(1, 24), min_size=1, max_size=13),
    quantum=st.integers(1, 9),
    carries=st.integers(1, 4),
)
def test_which_groups_make_a_batch_follows_from_sampled_tokens(lengths, quantum, carries):
    rank = Rank(lengths, quantum=quantum, carries=carries)
    expected = Expected(list(lengths), quantum, carries)
    try:
        for step in (1, 2, 3, 4):
            batch, figures = rank.run(step)
            groups, rounds = expected.step(step)
            prompts = [text(row) for row in batch["prompt_ids"].to_list()]
            assert prompts == [f"[u:p{group}][a:" for group in groups for _ in range(GROUP_SIZE)]
            assert figures["sampling/rounds"] == rounds
            rows = [group * GROUP_SIZE + member for group in groups for member in range(GROUP_SIZE)]
            numbers = [expected.lengths_cut.get(row, lengths[row % len(lengths)]) for row in rows]
            assert [int(mask.sum()) for mask in batch["response_mask"].to_list()] == numbers
            assert batch["truncated"].values.tolist() == [row in expected.cut for row in rows]
            versions = [row.tolist() for row in batch["token_versions"].to_list()]
            assert all(run == sorted(run) and run[-1] <= step - 1 for run in versions)
            assert all(run[0] >= expected.drawn[row // GROUP_SIZE] - 1 for run, row in zip(versions, rows, strict=True))
            assert figures["partial/rows_unfinished"] == len(expected.going)
            assert figures["response_length/mean"] == pytest.approx(np.mean(numbers))
    finally:
        rank.close()


LENGTHS = [3, 17, 2, 9, 24, 5, 1, 13, 6]


@pytest.mark.parametrize("algorithm", [GRPO, DAPO], ids=["Rollout", "Sample"])
def test_a_restart_plays_what_was_under_way_from_a_checkpoint_and_a_torn_journal(tmp_path: Path, algorithm):
    def journals(attempt):
        return JournalFolder(tmp_path, f"actor-00000-{attempt}", "job", is_over=lambda step, now: False, tidies=True)

    whole, stopped = (Rank(LENGTHS, algorithm, journals=item) for item in (None, journals(1)))
    for step in (1, 2):
        whole.run(step)
        stopped.run(step)
    state = stopped.save(tmp_path)
    assert state["unfinished"] and state["carried"], "something is kept of each kind"
    stopped.run(3)
    stopped.close()
    # killed in step 3, in the middle of a line
    (file,) = tmp_path.glob("step-00000003/*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    cut = len(lines) * 2 // 3
    file.write_bytes(b"".join(lines[:cut]) + lines[cut][:30])
    resumed = Rank(LENGTHS, algorithm, journals=journals(2))
    resumed.load(tmp_path, state)
    for step in (3, 4, 5):
        expected, result = whole.run(step), resumed.run(step)
        assert as_lists(result[0]) == as_lists(expected[0])
        for name, value in expected[1].items():
            if not name.startswith("time/") and name not in (REPLAYED, "conversation/loop_blocked_seconds"):
                assert result[1][name] == pytest.approx(value), name
        assert (result[1][REPLAYED] > 0) == (step == 3) or step > 3
    whole.close()
    resumed.close()
    # calls have the names of the step in which their trajectories began, and each is answered as it was
    assert {key for *_, key in resumed.world.calls if "/again/" not in key} < {key for *_, key in whole.world.calls}


REPLAYED = "conversation/trajectories_replayed"


def test_a_trajectory_goes_on_where_it_waited():
    # row 3 of group 1 has 10 tokens, others 2: 4 in each round of step 1, 2 in step 2
    rank = Rank([2, 2, 2, 10] + [2] * 96)
    first, figures = rank.run(1)
    assert (figures["partial/rows_unfinished"], figures["partial/groups_unfinished"]) == (1, 1)
    assert figures["tokens/response_total"] == 9 * 2 + 8
    assert not rank.engine.held, "nothing is kept for rows that wait"
    second, figures = rank.run(2)
    rank.close()
    row = [text(prompt) for prompt in second["prompt_ids"].to_list()].index("[u:p1][a:") + 1
    mask = second["response_mask"].row(row).astype(bool)
    assert second["token_versions"].row(row)[mask].tolist() == [0] * 8 + [1] * 2
    assert second["turn_ids"].row(row)[mask].tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3]
    assert figures["partial/age_max"] == 1 and figures["tokens/response_total"] == 2 + 8 * 2
    # three calls between four turns, each once and in one session
    assert [key.split("/")[:3] for session, *_, key in rank.world.calls] == [["step-1", "3", "0"]] * 3
    # the third turn begins with what is left of the second round, and goes on behind these tokens
    begun = [request.begun.response_ids.to_list() for request in rank.engine.submitted if request.begun is not None]
    assert [[text(row) for row in rows if len(row)] for rows in begun] == [["b"], ["aa"]]
    assert any("messages" in sample for sample in rank.samples)


def test_a_group_of_which_too_many_failed_is_drawn_again_beside_what_goes_on():
    def fails(task):
        return task.group == 1 and task.attempt == 0

    lengths = [2, 2, 7, 7] + [2] * 96
    rank = Rank(lengths, run=Walk(lengths, fails))
    first, figures = rank.run(1)
    # group 1 ends in round 2 of step 1 with both failed, and begins again there; it has 7 tokens in two rounds
    assert figures["conversation/groups_redrawn"] == 1 and figures["partial/groups_unfinished"] == 1
    second, figures = rank.run(2)
    rank.close()
    assert second["kept"].values.all() and text(second["prompt_ids"].row(0)) == "[u:p1][a:"
    assert {turn >> 24 for row, turn in rank.engine.prompts if row in (2, 3)} == {0, 1}


def test_turns_at_once_are_refused_by_name():
    async def twice(task, policy, world):
        branches = policy.branches()
        await asyncio.gather(*(branches.reply([{"role": "user", "content": text}]) for text in ("a", "b")))

    rank = Rank([2], run=twice, rows=2)
    try:
        with pytest.raises(InvalidJob, match=r"rollout\.partial: .* one after another"):
            rank.run(1)
    finally:
        rank.close()
