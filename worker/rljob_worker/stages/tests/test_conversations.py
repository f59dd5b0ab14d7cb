"""Conversations in the stages that generate and reward: rows, failures, figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rljob_api.tests.builders import make_plan
from rljob_worker.batch import Batch, Column
from rljob_worker.conversations.journal.files import JournalFolder
from rljob_worker.conversations.playing.loop import Conversations
from rljob_worker.conversations.playing.tests.playing import FunctionWorld, LetterRenderer, SteppingEngine, ids, text
from rljob_worker.data.dataset import Prompts
from rljob_worker.errors import BadData
from rljob_worker.rewards.functions import environment_reward
from rljob_worker.rewards.tests.in_process import RewardsHere
from rljob_worker.runtime.setup.conversations import bounds_of
from rljob_worker.runtime.validation import Validation
from rljob_worker.stages import build_stage
from rljob_worker.stages.played import played_rows
from rljob_worker.stages.played.conversation_rollout import ConversationRollout
from rljob_worker.stages.played.failed_trajectories import require_few_failed
from rljob_worker.stages.sample import split_outcomes, stand_ins
from rljob_worker.stages.stage import Alone, Resources, StageContext

GRPO = ("algorithm={name: GRPO, groupSize: 3}", "data.batchSize=2", "rollout.maxResponseTokens=60")
DYNAMIC = ("algorithm={name: DAPO, groupSize: 3}", "data.batchSize=2", "rollout.maxResponseTokens=60")


class Chats:
    """Prompt n is `p` and n, as text."""

    num_filtered = 0

    def __len__(self):
        return 2

    def read_ahead(self, ordinals):
        """There is nothing to read."""

    def fetch(self, ordinals):
        prompts = [f"p{n}" for n in ordinals]
        columns = {"answer": Column.strings(prompts), "place": Column.strings("here" for _ in prompts)}
        messages = [[{"role": "user", "content": prompt}] for prompt in prompts]
        return Prompts([ids(p) for p in prompts], prompts, columns, Column.strings("s" for _ in prompts), messages)


class Run:
    """Plays two turns with a call between them; fails as a test says."""

    def __init__(self, fails=lambda task: False):
        self.fails, self.tasks = fails, []

    async def __call__(self, task, policy, world):
        self.tasks.append((task.group, task.member, task.attempt))
        assert task.columns["place"] == "here" and task.columns["source"] == "s"
        await policy.chat()
        if self.fails(task):
            world.fail("lost", "the tool died")
        world.reward(0.5, turn=0)
        answer = await world.call("count", {"n": task.member})
        world.metric("counted", answer.value)
        world.show("counted", answer.value)
        await policy.chat([{"role": "user", "content": str(answer.value)}])
        world.reward(task.member)


def reward(row):
    """Of the rows of trajectories that did not fail."""
    assert [message["role"] for message in row["messages"]] == ["user", "assistant"] * 2
    assert "kept" not in row and row["answer"] == row["prompt"].removesuffix("][a:").removeprefix("[u:")
    return row["environment_reward"]


def count_world():
    return FunctionWorld(lambda session, target, method, arguments: 10 + arguments["n"])


def staged(run, *settings, conversation="columns: [place]", renderer=None, journals=None, rewards=reward, world=None):
    """The first stage of a job and what it runs with."""
    plan = make_plan(f"rollout.conversation={{{conversation}}}", *settings)
    engine = SteppingEngine(lambda row_id, turn, before: "ab"[turn % 2] * (1 + row_id % 2) + "~")
    conversations = Conversations(
        engine,
        run,
        renderer or LetterRenderer(),
        bounds_of(plan.spec, None),
        caller=world or count_world(),
        concurrency=4,
    )
    resources = Resources(
        plan,
        {},
        {"actor": engine},
        datasets={"actor": Chats()},
        rewards={"actor": RewardsHere(rewards)},
        conversations={"actor": ConversationRollout(plan.spec, conversations, journals)},
    )
    return plan, resources


def run_stages(plan, resources, *names, step=1):
    """(rows, figures, samples) after the stages of these names."""
    context = StageContext(step, 3, plan.spec, text, lambda tensor: tensor, 0, 1)
    batch, figures, samples = None, {}, []
    try:
        for stage in plan.stages:
            if stage.name in names:
                given = None if batch is None else batch.select(stage.reads)
                result = build_stage(stage, resources).run(given, context)
                batch = result.batch if batch is None else batch.with_columns(result.batch.columns)
                figures |= {name: scalar.value for name, scalar in result.metrics.items()}
                samples += result.samples
    finally:
        resources.conversations["actor"].close()
    return batch, figures, samples


def test_rows_of_a_step_are_those_that_were_played():
    plan, resources = staged(Run(), *GRPO)
    batch, figures, samples = run_stages(plan, resources, "rollout", "reward")
    assert batch.row_ids.tolist() == list(range(6)) and batch.group_ids.tolist() == [0, 0, 0, 1, 1, 1]
    assert [text(row) for row in batch["prompt_ids"].to_list()] == ["[u:p0][a:"] * 3 + ["[u:p1][a:"] * 3
    responses = [text(row) for row in batch["response_ids"].to_list()]
    assert responses[:3] == ["a~][u:10][a:b~", "aa~][u:11][a:bb~", "a~][u:12][a:b~"]
    assert batch["response_mask"].row(1).tolist() == [1] * 3 + [0] * 10 + [1] * 3
    assert not batch["rollout_log_probs"].row(1)[3:13].any()
    assert batch["environment_reward"].values.tolist() == batch["rewards"].values.tolist() == [0.5, 1.5, 2.5] * 2
    rewarded = batch["turn_rewards"].row(1)
    assert {at: rewarded[at] for at in np.flatnonzero(rewarded)} == {2: 0.5, 15: 1.0}
    assert batch["kept"].values.tolist() == [1] * 6 and "place" not in batch
    # sampled tokens: 4, 6, 4 of the first group, and 6, 4, 6 of the second
    assert figures["response_length/mean"] == 5 and figures["tokens/response_total"] == 30
    assert figures["conversation/world_tokens"] == 60 and figures["conversation/turns_mean"] == 2
    assert figures["conversation/tool_calls"] == 1 and figures["conversation/world/counted"] == 11
    assert figures["conversation/failed_fraction"] == figures["conversation/failed_fraction/error"] == 0
    shown = {sample["row_id"]: sample for sample in samples if "messages" in sample}
    assert [message["role"] for message in shown[0]["messages"]] == ["user", "assistant", "user", "assistant"]
    # of the world 0.5 for the first turn, and at the end 0, 1 and 2
    assert figures["conversation/turn_reward/00"] == 0.5 and figures["conversation/turn_reward/01"] == 1.0
    assert "conversation/turn_reward/02" not in figures
    assert shown[2]["environment_rewards"] == [[0, 0.5], [None, 2.0]]
    # two of each group of three may show more
    assert {row: sample["counted"] for row, sample in shown.items() if "counted" in sample} == {
        0: 10, 1: 11, 3: 10, 4: 11,
    }  # fmt: skip


def test_rewards_by_turn_are_means_over_the_trajectories_that_had_it_and_later_turns_count_together(monkeypatch):
    monkeypatch.setattr(played_rows, "SHOWN_TURNS", 1)

    async def run(task, policy, world):
        for turn in range(1 + task.member):
            await policy.chat([{"role": "user", "content": "x"}])
            world.reward(8.0 / (1 + turn), turn=turn)

    plan, resources = staged(run, *GRPO, conversation="maxTurns: 4")
    _, figures, _ = run_stages(plan, resources, "rollout")
    # members play 1, 2 and 3 turns: all have 8 for the first, two 4 for the second and one 8/3 for the third,
    # (4 + 4 + 8/3) / 3 = 32/9
    assert figures["conversation/turn_reward/00"] == 8
    assert figures["conversation/turn_reward/later"] == pytest.approx(32 / 9)
    assert "conversation/turn_reward/01" not in figures


def test_a_trajectory_that_failed_is_in_no_mean_no_baseline_and_no_reward():
    plan, resources = staged(
        Run(lambda task: task.trajectory == 1), *GRPO, conversation="columns: [place], maxFailed: 0.2"
    )
    batch, figures, samples = run_stages(plan, resources, "rollout", "reward", "advantage")
    assert batch["kept"].values.tolist() == [1, 0, 1, 1, 1, 1]
    assert batch["response_ids"].lengths[1] == 0 and text(batch["prompt_ids"].row(1)) == "p0"
    assert figures["conversation/failed_fraction/lost"] == pytest.approx(1 / 6)
    # of 0.5 2.5 and 0.5 1.5 2.5
    assert figures["reward/mean"] == pytest.approx((0.5 + 2.5 + 0.5 + 1.5 + 2.5) / 5)
    firsts = [row[0] if len(row) else None for row in batch["advantages"].to_list()]
    # a group of two: deviations of 1 over a standard deviation of sqrt 2; of three: 1 over 1
    assert firsts[1] is None and firsts[0] == pytest.approx(-1 / np.sqrt(2), abs=1e-4) and firsts[2] == -firsts[0]
    assert firsts[3:] == pytest.approx([-1, 0, 1], abs=1e-4)
    assert next(sample for sample in samples if sample["row_id"] == 1)["failed"] == "lost: the tool died"


def test_a_group_with_fewer_than_two_left_is_drawn_again_once():
    run = Run(lambda task: task.group == 0 and task.member < 2 and task.attempt == 0)
    plan, resources = staged(run, *GRPO)
    batch, figures, _ = run_stages(plan, resources, "rollout", "reward")
    assert batch["kept"].values.all() and figures["conversation/groups_redrawn"] == 1
    assert [attempt for group, _, attempt in run.tasks if group == 0] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("settings", [GRPO, DYNAMIC])
def test_more_failures_than_the_job_allows_end_it_and_say_why(settings):
    plan, resources = staged(
        Run(lambda task: task.member == 0), *settings, conversation="columns: [place], maxFailed: 0.3"
    )
    with pytest.raises(BadData, match="2 of 6 conversations failed, and .*maxFailed is 0.3.*2 lost .the tool died"):
        run_stages(plan, resources, "rollout", "sample")


def test_a_worker_where_none_failed_says_where_the_causes_are():
    spec = make_plan("rollout.conversation={maxFailed: 0.1}").spec
    with pytest.raises(BadData, match="2 of 6 conversations failed.*On this worker: none; the logs of others name"):
        require_few_failed(spec, 3, 2, 6, {})


def of_whole_conversation(row):
    """The messages are those of both rows of the trajectory, whose second the prompt is of."""
    first, said, asked, last = (message["content"] for message in row["messages"])
    assert (first, row["prompt"]) == (row["answer"], f"[u:{first}][u:{asked}][a:") and said + last
    return row["environment_reward"]


def test_a_template_that_rewrites_history_gives_a_trajectory_several_rows():
    plan, resources = staged(
        Run(), *GRPO, conversation="columns: [place], maxRows: 2", renderer=LetterRenderer(keeps=False),
        rewards=of_whole_conversation,
    )  # fmt: skip
    batch, figures, _ = run_stages(plan, resources, "rollout", "reward", "advantage")
    assert batch.row_ids.tolist() == list(range(12)) and figures["conversation/rows_opened"] == 6
    assert [text(row) for row in batch["prompt_ids"].to_list()][:2] == ["[u:p0][a:", "[u:p0][u:10][a:"]
    assert batch["rewards"].values.tolist() == [0.5, 0.5, 1.5, 1.5, 2.5, 2.5] * 2
    assert [batch["turn_ids"].row(row).tolist() for row in (0, 1)] == [[0, 0], [1, 1, 1]]


def test_rewards_of_turns_are_at_their_last_tokens():
    world = "{name: world, run: 'rljob_worker.rewards:environment_reward', weight: 2.0, spread: Steps}"
    ppo = ("algorithm={name: PPO, groupSize: 3}", *GRPO[1:], f"rewards=[{world}]")
    plan, resources = staged(Run(lambda task: task.trajectory == 0), *ppo, rewards=environment_reward,
                             conversation="columns: [place], maxFailed: 0.2")  # fmt: skip
    batch, _, _ = run_stages(plan, resources, "rollout", "reward")
    # trajectory 1 gets 0.5 with its first turn and 1 at the end, each with weight 2; trajectory 0 failed
    steps = batch["step_rewards"].row(1)
    assert {at: steps[at] for at in np.flatnonzero(steps)} == {2: 1.0, 15: 2.0}
    assert batch["rewards"].values[:2].tolist() == [0.0, 1.5] and not len(batch["step_rewards"].row(0))


def test_dynamic_sampling_asks_whether_rewards_of_those_that_did_not_fail_vary():
    # the first prompt's rewards vary with the failed trajectory alone
    def fails(task):
        return task.group == 0 and task.member == 0

    def alike(row):
        return 1.0 if row["answer"] == "p0" else row["environment_reward"]

    plan, resources = staged(Run(fails), *DYNAMIC, conversation="columns: [place], maxFailed: 0.5", rewards=alike)
    batch, figures, _ = run_stages(plan, resources, "sample")
    # prompt 0 is dropped, 1 and 2 have places 0 and 1
    assert [text(row) for row in batch["prompt_ids"].to_list()][::3] == ["[u:p1][a:", "[u:p2][a:"]
    assert figures["sampling/groups_all_right"] == 1 and batch["kept"].values.all()
    assert batch.row_ids.tolist() == list(range(6))


def test_those_that_did_not_fail_stand_in_for_the_others():
    # groups of 3: the first lacks its first, the second all
    assert stand_ins(6, np.array([1, 2]), 3).tolist() == [1, 1, 2, 3, 4, 5]
    assert stand_ins(3, np.arange(3), 3).tolist() == [0, 1, 2]
    outcomes, failed = split_outcomes(np.array([1, 8 * 31 + 6, 0]))
    assert outcomes.tolist() == [1, 6, 0] and failed.tolist() == [0, 31, 0]


def test_a_step_is_played_again_from_the_journal_of_a_job_that_was_killed(tmp_path: Path):
    def journals(attempt, job="job"):
        return JournalFolder(tmp_path, f"actor-00000-{attempt}", job, is_over=lambda step, now: step < now, tidies=True)

    plan, resources = staged(Run(), *GRPO, journals=journals(1))
    batch, figures, _ = run_stages(plan, resources, "rollout", "reward", step=4)
    (file,) = tmp_path.glob("step-00000004/*.jsonl")
    lines = file.read_bytes().splitlines(keepends=True)
    # killed in the middle of a line
    file.write_bytes(b"".join(lines[:15]) + lines[15][:20])
    world = count_world()
    plan, resources = staged(Run(), *GRPO, journals=journals(2), world=world)
    again, others, _ = run_stages(plan, resources, "rollout", "reward", step=4)
    assert same_rows(again, batch) and others["conversation/trajectories_replayed"] > 0
    answers = sum(b'"answer"' in line for line in lines[:15])
    assert 0 < answers < 6 and len(world.calls) == 6 - answers
    # journals of another job are of no use, and those of steps that are over go
    plan, resources = staged(Run(), *GRPO, journals=journals(3, "another job"))
    _, others, _ = run_stages(plan, resources, "rollout", "reward", step=4)
    assert others["conversation/trajectories_replayed"] == 0
    plan, resources = staged(Run(), *GRPO, journals=journals(4))
    run_stages(plan, resources, "rollout", "reward", step=5)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005"]


def same_rows(one: Batch, other: Batch) -> bool:
    names = ("prompt_ids", "response_ids", "response_mask", "rollout_log_probs", "turn_ids", "rewards")
    return all(np.array_equal(one[name].values, other[name].values) for name in names)


def test_validation_plays_conversations_and_counts_one_that_failed_as_wrong():
    run = Run(lambda task: task.trajectory == 1)
    plan, resources = staged(
        run, *GRPO, "data.validation=[{path: v.parquet}]", "validation={samplesPerPrompt: 2, temperature: 1.0}"
    )

    class Letters:
        def decode(self, tokens, skip_special_tokens=False):
            return text(tokens)

    validation = Validation(
        plan.spec, "actor", Chats(), resources.rollout_engines["actor"], RewardsHere(lambda row: 1.0), Letters(), 0, 1,
        conversations=resources.conversations["actor"], copy=Alone(),
    )  # fmt: skip
    metrics, shown = validation.run()
    resources.conversations["actor"].close()
    figures = {name: scalar.value for name, scalar in metrics.items()}
    assert figures["validation/accuracy"] == 0.75 and figures["validation/failed_fraction"] == 0.25
    assert figures["validation/pass@1"] == 0.75 and figures["validation/pass@2"] == 1.0
    # sampled tokens 4 0 4 6 of the four
    assert figures["validation/response_length"] == 14 / 4
    assert [row["row_id"] for row in shown] == [0, 1, 2, 3]
    assert len(run.tasks) == 4, "nothing is drawn again"
