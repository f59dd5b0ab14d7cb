"""Rewards in real processes: answers, limits, mistakes, and nothing left behind."""

import os
import select
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.process.bounded import within
from rljob_worker.rewards.running import pool, round
from rljob_worker.rewards.running import runner as runner_module
from rljob_worker.rewards.running.runner import RewardRunner
from rljob_worker.tests.waiting import wait_for

HERE = Path(__file__).parents[2] / "tests"


@dataclass
class Spec:
    run: str
    name: str = "style"
    column: str | None = None
    weight: float = 1.0
    timeout_seconds: float = 60.0
    on_error: str = "Fail"
    retries: int = 5
    backoff_seconds: float = 0.05
    service: str | None = None
    url: str | None = None
    token_variable: str | None = None
    token_file: str | None = None
    batch_rows: int = 16
    concurrency: int = 8
    options: dict[str, Any] = field(default_factory=dict)
    spread: str = "Row"
    confinement: str = "Off"
    network: tuple[str, ...] = ()


def rows(*responses):
    return [{"prompt": "p", "response": r, "row_id": 100 + i, "source": "gsm8k"} for i, r in enumerate(responses)]


def score(spec, data, processes=1):
    with RewardRunner([spec], processes, [HERE]) as runner:
        return runner.score(data)


def user(function, **values):
    return Spec(f"user_rewards:{function}", **values)


@pytest.mark.parametrize("function", ["picture_bytes", "picture_bytes_later"])
def test_a_reward_gets_pictures_as_the_bytes_they_are(function):
    # three rows of a group share two pictures, and one has another
    shared, other = [b"a\xff\x00", b"b" * (1 << 20)], [b"c\n"]
    data = [{**row, "pictures": other if i == 3 else shared} for i, row in enumerate(rows("w", "x", "y", "z"))]
    with RewardRunner([user(function)], 1, [HERE], columns=["pictures"]) as runner:
        result = runner.score(data)
    assert result.total.tolist() == [1 << 20] * 3 + [2]
    assert result.answers == {0: "ab", 1: "ab", 2: "ab", 3: "c"}


def test_pictures_of_a_group_are_sent_once():
    shared, other = [b"a", b"b"], [b"c"]
    sent, pictures = pool.without_pictures(
        [{"row": 1, "pictures": shared}, {"row": 2, "pictures": shared}, {"row": 3, "pictures": other}, {"row": 4}]
    )
    assert [row.get("pictures") for row in sent] == [[0, 1], [0, 1], [2], None]
    assert pictures == [b"a", b"b", b"c"]


def test_rewards_come_back_in_row_order_whatever_the_number_of_processes():
    data = rows(*["x" * n for n in range(50)])
    for processes in (1, 3):
        result = score(user("length"), data, processes)
        assert result.rewards[:, 0].tolist() == [float(n) for n in range(50)]


def test_a_large_row_is_not_copied_for_every_piece_that_the_pipe_takes(monkeypatch):
    written, write = [], os.write

    def recording(descriptor, data):
        written.append(data.obj if isinstance(data, memoryview) else data)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", recording)
    assert score(user("length"), rows("x" * (1 << 22))).total.tolist() == [1 << 22]
    large = [data for data in written if len(data) > 1 << 21]
    assert len(large) > 8 and len({id(data) for data in large}) == 1


def test_weights_options_and_metrics():
    specs = [user("length", name="a", weight=0.5, options={"scale": 2.0}), user("with_metrics", name="b", weight=-1)]
    with RewardRunner(specs, 2, [HERE]) as runner:
        result = runner.score(rows("aab", "ccccc"))
    # a: 2 * length = 6, 10; b: length = 3, 5; total = 0.5 * a - b = 0, 0
    assert result.rewards.tolist() == [[6.0, 3.0], [10.0, 5.0]]
    assert result.total.tolist() == [0.0, 0.0]
    assert {name: scalar.value for name, scalar in result.metrics.items()} == {
        "reward/a": 8.0,
        "reward/b": 4.0,
        "reward/b/vowels": 1.0,
        "reward/timeouts_total": 0.0,
    }


def test_a_number_that_only_some_rows_report_is_averaged_over_those():
    result = score(user("vowels", name="v"), rows("a", "b", "b"))
    assert result.metrics["reward/v/seen"].value == 1.0
    assert result.metrics["reward/v/seen"].count == 1


def test_the_first_reward_says_what_it_took_for_the_answer():
    specs = [user("says_what_it_found"), user("says_what_it_found", name="second")]
    with RewardRunner(specs, 2, [HERE]) as runner:
        data = rows("=a", "b", "=", "=7", "c")
        runner.begin(data)
        result = runner.collect([row["row_id"] for row in data[::-1]])
    assert result.answers == {1: "7.0", 2: None, 4: "a"}
    assert set(result.metrics) >= {"reward/style/size", "reward/second/size"}
    assert not any(name.endswith("/answer") for name in result.metrics)


def test_a_row_that_was_missed_has_no_answer():
    result = score(user("hangs_on_bad", timeout_seconds=0.5), rows("ok", "bad"), 2)
    assert result.answers == {1: None}


def test_processes_stay_between_calls():
    with RewardRunner([user("own_pid")], 1, [HERE]) as runner:
        assert len({runner.score(rows("abc")).total.item() for _ in range(3)}) == 1


def test_an_idle_process_that_dies_harms_nobody(tmp_path):
    spec = user("own_pid_once_two_have_met", options={"folder": str(tmp_path)})
    with RewardRunner([spec], 2, [HERE]) as runner:
        both = set(map(int, runner.score(rows("a", "b")).total))
        first = int(runner.score(rows("a")).total.item())  # one row goes to the same process every time
        (idle,) = both - {first}
        os.kill(idle, signal.SIGKILL)
        wait_until_gone([idle])
        assert runner.score(rows("a")).total.tolist() == [first]


def test_a_runner_without_processes_would_wait_for_good():
    with pytest.raises(AssertionError):
        RewardRunner([user("length")], 0)


def test_a_closed_runner_leaves_no_descriptor():
    before = os.listdir("/proc/self/fd")
    score(user("length"), rows("a"), 2)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_no_rows():
    result = score(user("length"), [])
    assert result.rewards.shape == (0, 1) and result.total.shape == (0,)


def test_a_row_carries_the_dataset_columns_and_its_reference():
    data = [{"prompt": "p", "response": "r", "answer": "42", "truncated": False, "source": "s"}]
    assert score(user("sees_everything", column="answer"), data).total.tolist() == [1.0]


@pytest.mark.parametrize("run", ["user_rewards:uses_an_alarm", "rljob_worker.rewards:math_answer"])
def test_mathematics_in_a_reward_process(run):
    data = [{"response": r, "answer": "$0.5$"} for r in (r"so \boxed{\frac{1}{2}}", "it is 2")]
    assert score(Spec(run, column="answer"), data).total.tolist() == [1.0, 0.0]


def test_large_rows_do_not_block_the_pipes():
    data = rows(*["x" * 1_000_000] * 12)
    assert score(user("length"), data, 2).total.tolist() == [1e6] * 12


@pytest.mark.parametrize("function", ["hangs_on_bad", "hangs_in_c"])
def test_a_hanging_row_costs_that_row_only(function, caplog):
    data = rows("ok", "ok", "bad", "ok", "ok", "ok", "ok", "ok")
    result = score(user(function, timeout_seconds=0.5), data, 2)
    assert result.total.tolist() == [1, 1, 0, 1, 1, 1, 1, 1]
    assert [late.row for late in result.missed] == [2]
    assert result.missed[0].message == 'reward "style" timed out after 0.5 s on row 103 (source gsm8k)'
    assert result.metrics["reward/timeouts_total"].value == 1
    assert result.missed[0].message in caplog.text


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("raises_on_bad", ["raised ZeroDivisionError: division by zero", "in _inner: return 1 / 0"]),
        ("nan_on_bad", ["returned nan, not a number"]),
        ("ends_process", ["ended its process twice (exit code 9)"]),
        ("ends_by_signal", ["ended its process twice (signal SIGUSR1)"]),
        ("ends_its_group", ["ended its process twice (signal SIGKILL)"]),
    ],
)
def test_a_mistake_names_reward_row_and_cause(function, words):
    with pytest.raises(BadData) as caught:
        score(user(function), rows("ok", "bad", "ok"))
    assert str(caught.value).startswith('reward "style" on row 102 (source gsm8k) ')
    for word in words:
        assert word in str(caught.value)


def test_the_line_is_that_of_the_users_file():
    with pytest.raises(BadData, match=r"user_rewards\.py:\d+ in _inner"):
        score(user("raises_on_bad"), rows("bad"))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("nothing", "returned None, not a number or a dict with `reward`"),
        ("no_reward_key", "returned a dict without `reward`; its keys are score"),
        ("answers_with_a_list", "returned list ['4', '2'] as `answer`, not a text, a number or None"),
        ("exits", "raised SystemExit: 3"),
        ("not_in_row", "the row has no 'anwser'; it has prompt, response, row_id, source"),
        ("async_raises", "raised LookupError: no judge"),
        ("forgotten_async", "declare the function with `async def`"),
    ],
)
def test_answers_that_are_not_rewards(function, words):
    with pytest.raises(BadData) as caught:
        score(user(function), rows("a"))
    assert words in str(caught.value)


def test_a_runner_goes_on_after_a_mistake():
    with RewardRunner([user("raises_on_bad")], 2, [HERE]) as runner:
        with pytest.raises(BadData, match="ZeroDivisionError"):
            runner.score(rows("ok", "bad", *["ok"] * 20))
        assert runner.score(rows("ok", "ok")).total.tolist() == [1.0, 1.0]


def test_the_end_of_a_process_is_noticed_beside_a_copy_that_holds_its_pipes(tmp_path):
    spec = user("ends_beside_a_copy", timeout_seconds=2 * TEST_TIMEOUT_SECONDS, options={"folder": str(tmp_path)})
    with pytest.raises(BadData, match=r"ended its process twice \(exit code 9\)"):
        within(TEST_TIMEOUT_SECONDS, lambda: score(spec, rows("ok", "bad")))
    copies = [int(path.stem) for path in tmp_path.iterdir()]
    assert len(copies) == 2
    wait_until_gone(copies)


def test_a_process_that_dies_once_is_replaced(tmp_path):
    spec = user("ends_process_once", options={"marker": str(tmp_path / "marker")})
    assert score(spec, rows("ok", "bad", "ok")).total.tolist() == [1.0, 1.0, 1.0]


def test_what_a_reward_prints_goes_to_the_log(capfd):
    assert score(user("prints"), rows("a")).total.tolist() == [1.0]
    out, err = capfd.readouterr()
    assert "printed by a reward" in out and "raw write" in out and "and to stderr" in err


def test_a_copy_forked_by_a_reward_does_not_answer():
    assert score(user("forks_and_returns"), rows("a", "b", "c")).total.tolist() == [1.0, 1.0, 1.0]


def test_rows_are_begun_in_pieces_and_collected_in_any_order():
    data = rows(*["x" * n for n in range(12)])
    with RewardRunner([user("length"), user("with_metrics", name="b")], 2, [HERE]) as runner:
        whole = runner.score(data)
        for start in (8, 0, 4):
            runner.begin(data[start : start + 4])
        result = runner.collect([100 + n for n in range(12)])
        assert result.rewards.tolist() == whole.rewards.tolist() == [[n, n] for n in range(12)]
        assert result.metrics == whole.metrics and result.total.tolist() == whole.total.tolist()
        # the same rows again: nothing is left of what was collected
        runner.begin(data[:1])
        assert runner.collect([100]).total.tolist() == [0.0]


def test_rewards_are_computed_before_anybody_collects_them(tmp_path):
    with RewardRunner([user("leaves_a_file", options={"folder": str(tmp_path)})], 1, [HERE]) as runner:
        runner.begin(rows("a"))
        wait_for((tmp_path / "100").exists)
        runner.begin(rows("a", "b")[1:])
        wait_for((tmp_path / "101").exists)
        assert runner.collect([101, 100]).total.tolist() == [1.0, 1.0]


def test_rows_that_are_begun_one_by_one_are_dealt_as_if_they_had_been_begun_together(monkeypatch):
    monkeypatch.setattr(runner_module, "GATHER_SECONDS", 600.0)  # of which nobody waits for the end
    dealt, send = list[list[int]](), pool.UserProcess.send

    def noted(process, message, *pictures):
        dealt.append([place for place, _ in message.get("rows", ())])
        send(process, message, *pictures)

    monkeypatch.setattr(pool.UserProcess, "send", noted)
    data = rows(*["x" * n for n in range(12)])
    with RewardRunner([user("length")], 1, [HERE]) as runner:
        dealt.clear()
        whole = runner.score(data)
        together = list(dealt)
        dealt.clear()
        for row in data:
            runner.begin([row])
        assert runner.collect().total.tolist() == whole.total.tolist()
    assert dealt == together and together[0] != list(range(12))


def test_a_mistake_is_raised_by_the_next_rows_that_are_begun():
    with RewardRunner([user("raises_on_bad")], 1, [HERE]) as runner:
        runner.begin(rows("bad"))

        def begin_more():
            runner.begin([])

        with pytest.raises(BadData, match="division by zero"):
            wait_for(begin_more)
        assert runner.score(rows("ok")).total.tolist() == [1.0]


def test_rows_that_time_out_are_named_in_the_order_in_which_they_are_collected():
    data = rows("bad", "ok", "bad")
    with RewardRunner([user("hangs_on_bad", timeout_seconds=0.3)], 2, [HERE]) as runner:
        runner.begin(data[2:])
        runner.begin(data[:2])
        result = runner.collect([100, 101, 102])
    assert result.total.tolist() == [0.0, 1.0, 0.0]
    assert [late.row for late in result.missed] == [0, 2]


def test_a_runner_is_closed_while_rows_are_under_way():
    before, threads = os.listdir("/proc/self/fd"), threading.active_count()
    runner = RewardRunner([user("hangs_on_bad")], 2, [HERE])
    runner.begin(rows("bad", "ok"))
    runner.close()
    assert threading.active_count() == threads, "it would start processes in place of those that were killed"
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_rows_of_an_async_reward_join_those_in_flight():
    spec = user("async_length", options={"meet": 20})
    data = rows(*["abc"] * 20)
    with RewardRunner([spec], 1, [HERE]) as runner:
        for row in data:
            runner.begin([row])
        assert runner.collect().total.tolist() == [3.0] * 20


def test_an_async_reward_and_a_plain_one_take_turns():
    specs = [user("async_length", options={"meet": 3}), user("length", name="b", options={"scale": 2.0})]
    data = rows("a", "bb", "ccc")
    with RewardRunner(specs, 1, [HERE]) as runner:
        for _ in range(3):
            for row in data:
                runner.begin([row])
            assert runner.collect().rewards.tolist() == [[1, 2], [2, 4], [3, 6]]


def test_async_rows_are_in_flight_together():
    spec = user("async_length", options={"meet": 20})
    assert score(spec, rows(*["abc"] * 20)).total.tolist() == [3.0] * 20


@pytest.mark.parametrize("function", ["async_hangs_on_bad", "async_refuses_cancel", "async_blocks_on_bad"])
def test_an_async_row_that_hangs_costs_that_row_only(function, monkeypatch):
    monkeypatch.setattr(round, "ASYNC_GRACE_SECONDS", 0.3)
    result = score(user(function, timeout_seconds=0.3), rows("ok", "bad", "ok", "ok"), 1)
    assert result.total.tolist() == [1, 0, 1, 1]
    assert [late.row for late in result.missed] == [1]


@pytest.mark.parametrize(
    ("run", "options", "words"),
    [
        ("user_rewards:lenght", {}, "user_rewards has no 'lenght'; did you mean length?"),
        ("user_reward:length", {}, "no module 'user_reward' in"),
        ("user_rewards:NOT_A_FUNCTION", {}, "is a int, not a function"),
        (
            "user_rewards:length",
            {"scael": 2},
            "got an unexpected keyword argument 'scael'; it is declared as (row, scale=1.0)",
        ),
        ("user_rewards:forks", {}, "missing a required argument: 'folder'"),
        ("user_rewards", {}, "is not of the form module:function"),
        ("rljob_worker.rewards:math_answr", {}, "did you mean math_answer"),
    ],
)
def test_a_reward_that_cannot_be_called_is_refused_at_the_start(run, options, words):
    with RewardRunner([Spec(run, options=options)], 1, [HERE]) as runner, pytest.raises(InvalidJob) as caught:
        runner.check()
    assert f'reward "style": {run}' in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import not_installed_anywhere\n", "ModuleNotFoundError: No module named 'not_installed_anywhere' at"),
        ("x = 1\ny = {}['a']\n", "KeyError: 'a' at"),
        ("def broken(:\n", "SyntaxError"),
        ("import sys\nsys.exit(4)\n", "SystemExit: 4"),
        (
            "import os\nos._exit(4)\n",
            "importing the rewards (failing_rewards:f, failing_rewards:g) ended the process: exit code 4",
        ),
    ],
)
def test_a_module_that_fails_to_import_is_refused_with_its_line(tmp_path, text, words):
    (tmp_path / "failing_rewards.py").write_text(text)
    specs = [Spec("failing_rewards:f"), Spec("failing_rewards:g", name="other")]
    with RewardRunner(specs, 1, [tmp_path]) as runner, pytest.raises(InvalidJob) as caught:
        runner.check()
    assert words in str(caught.value)
    if " at" in words:
        assert "failing_rewards.py:" in str(caught.value)


def test_a_module_that_hangs_at_import_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "START_SECONDS", 0.2)
    (tmp_path / "hanging_rewards.py").write_text("import time\ntime.sleep(1000)\n")
    specs = [Spec("hanging_rewards:f"), Spec("hanging_rewards:g", name="other")]
    with RewardRunner(specs, 1, [tmp_path]) as runner, pytest.raises(InvalidJob) as caught:
        runner.check()
    assert str(caught.value) == "importing the rewards (hanging_rewards:f, hanging_rewards:g) took longer than 0.2 s"


def test_nothing_a_reward_started_outlives_a_time_out_or_the_runner(tmp_path):
    spec = user("forks", timeout_seconds=3.0, options={"folder": str(tmp_path)})
    with RewardRunner([spec], 1, [HERE]) as runner:
        assert runner.score(rows("ok", "bad")).total.tolist() == [1.0, 0.0]
        wait_until_gone(pids(tmp_path / "101.pids"))
        assert runner.score(rows("ok")).total.tolist() == [1.0]
    wait_until_gone(pids(tmp_path / "100.pids"))


WORKER = """
import sys, time
from rljob_worker.rewards.running.runner import RewardRunner
from rljob_worker.rewards.running.tests.test_runner import Spec
spec = Spec("user_rewards:forks", options={"folder": sys.argv[1]})
RewardRunner([spec], 1, [sys.argv[2]]).score([{"response": "bad", "row_id": 1}])
"""


def test_nothing_a_reward_started_outlives_a_killed_worker(tmp_path):
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(tmp_path), str(HERE)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    written = tmp_path / "1.pids"
    while len(written.read_text().split() if written.exists() else []) < 3:
        assert worker.poll() is None
    worker.kill()
    worker.wait()
    wait_until_gone(pids(written))


def pids(path):
    return [int(pid) for pid in path.read_text().split()]


def wait_until_gone(processes):
    for pid in processes:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ready, _, _ = select.select([handle], [], [], 60)
        os.close(handle)
        assert ready, f"process {pid} is still alive"


def test_the_processes_import_neither_torch_nor_numpy():
    heavy = "('torch', 'numpy', 'transformers')"
    script = f"import sys, rljob_worker.rewards.running.process; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert out.stdout.strip() == "[]"


def test_rewards_are_double_precision():
    assert score(user("length"), rows("a")).rewards.dtype == np.float64


def test_a_dropped_connection_costs_a_call_or_a_reward_or_the_job(tmp_path):
    def judge(on_error):
        (tmp_path / on_error).mkdir()
        return user("drops_a_connection", on_error=on_error, options={"folder": str(tmp_path / on_error)})

    again = score(judge("Retry"), rows("a", "b"))
    assert again.total.tolist() == [0.5, 0.5] and again.missed == ()
    assert again.metrics["reward/style/retries_total"].value == 2
    zero = score(judge("Zero"), rows("a", "b"))
    assert zero.total.tolist() == [0.0, 0.0] and zero.metrics["reward/style/errors_total"].value == 2
    with pytest.raises(BadData, match="ConnectionResetError: by peer"):
        score(judge("Fail"), rows("a"))


def test_rewards_of_steps_are_distinguished_and_add_up_to_the_rows():
    specs = [user("length", name="a", weight=10.0), user("steps_of_lines", name="b", spread="Steps", weight=0.5)]
    with RewardRunner(specs, 2, [HERE]) as runner:
        result = runner.score(rows("ab\ncd", "x"))
    # a step of each line, worth its number: 1 + 2 and 1; what it returns as `reward` is for rewards of whole rows
    assert result.rewards.tolist() == [[5.0, 3.0], [1.0, 1.0]]
    assert result.total.tolist() == [51.5, 10.5]
    assert result.steps == {1: [[(3, 1.0), (5, 2.0)], [(1, 1.0)]]}
    assert result.metrics["reward/b"].value == 2.0
    whole = score(user("steps_of_lines"), rows("ab\ncd"))
    assert whole.total.tolist() == [-7.0] and whole.steps == {}


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("length", "returned no `step_rewards`, which `spread: Steps` places"),
        ("steps_of_nothing", "not \\[end, reward\\] of each step as `step_rewards`"),
        ("steps_beyond_the_end", "a step that ends at int 9, not at a character from 0 to 3"),
        ("steps_backwards", "a step that ends at int 1, not at a character from 2 to 3"),
        ("steps_of_nan", "returned nan, not a number as the reward of the step that ends at 3"),
    ],
)
def test_steps_that_are_none_are_named_with_their_row(function, words):
    with pytest.raises(BadData, match=f'reward "style" on row 101 .*{words}'):
        score(user(function, spread="Steps"), rows("abc"))


def test_a_row_that_is_missed_has_no_steps():
    spec = user("steps_beyond_the_end", spread="Steps", on_error="Zero")
    result = score(spec, rows("abc"))
    assert result.total.tolist() == [0.0] and result.steps == {0: [()]}


@pytest.mark.usefixtures("confining_kernel")
def test_the_strictest_reward_confines_all_that_share_its_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "a")
    secret = tmp_path / "secret"
    secret.write_text("token")
    open_one = user("reads_a_file", name="a", options={"path": str(secret)})
    assert score(open_one, rows("x")).total.tolist() == [6.0]
    strict = user("with_metrics", name="b", confinement="Required")
    with RewardRunner([open_one, strict], 1, [HERE]) as runner:
        assert runner.score(rows("abc")).rewards.tolist() == [[-1.0, 3.0]]


def test_a_network_that_is_none_is_refused_by_the_rewards_name():
    with pytest.raises(InvalidJob, match='reward "style": network: .169.254.169.254:80|reward "style": network: 169'):
        RewardRunner([user("length", confinement="Preferred", network=("169.254.169.254:80",))], 1, [HERE])
