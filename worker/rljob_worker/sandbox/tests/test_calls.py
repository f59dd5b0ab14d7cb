"""Calls in real processes: answers, state, limits, and what one call's end means for the others."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from rljob_worker.errors import InvalidJob
from rljob_worker.sandbox.calls import call_pool, call_process
from rljob_worker.sandbox.calls.calls import Target
from rljob_worker.sandbox.tests.calling import LIMITS, calling, failure, once, target, value
from rljob_worker.tests.waiting import children_of, is_gone, parent_of, wait_for


def played(play, *targets, **settings):
    async def run():
        async with calling(*targets, **settings) as calls:
            return await play(calls)

    return asyncio.run(run())


def test_functions_of_both_kinds_answer():
    async def play(calls):
        assert await value(calls, "s", "add", a=2, b=3) == 5
        assert await value(calls, "s", "add_later", a=2) == 3
        assert await value(calls, "s", "scaled", x=4) == 12

    played(play, target("add"), target("add_later"), target("scaled", options={"scale": 3}))


def test_a_function_that_asks_for_it_gets_the_key():
    async def play(calls):
        answer = await calls.call("s", "key_of", None, {}, key="12/0/1")
        assert answer.value == "12/0/1" and answer.seconds > 0

    played(play, target("key_of"))


def test_a_session_has_an_object_of_its_own_and_always_the_same():
    async def play(calls):
        counts = [[await value(calls, s, "Counter", "step", by=int(s)) for s in "12"] for _ in range(3)]
        assert counts == [[11, 12], [12, 14], [13, 16]]

    played(play, target("Counter", options={"start": 10}), processes=2)


def test_sessions_are_spread_over_processes_whose_modules_keep_state():
    async def play(calls):
        processes = [await value(calls, str(s), "Counter", "where") for s in range(6)]
        assert sorted(processes.count(pid) for pid in set(processes)) == [2, 2, 2]

    async def count(calls):
        assert [await value(calls, str(s), "count_of_process") for s in range(3)] == [1, 2, 3]

    played(play, target("Counter"), processes=3)
    played(count, target("count_of_process"))


def test_an_ended_session_begins_anew_and_its_object_is_closed(tmp_path, monkeypatch):
    monkeypatch.setenv("CLOSED_FILE", str(tmp_path / "closed"))

    async def play(calls):
        await value(calls, "s", "Closed", "step", by=7)
        await calls.end("s")
        assert (tmp_path / "closed").read_text() == "7\n"
        assert await value(calls, "s", "Closed", "step") == 1
        await calls.end("never there")

    played(play, target("Closed", environment=("CLOSED_FILE",)))


def test_a_thousand_sessions_with_objects_share_eight_processes():
    async def one(calls, session):
        for _ in range(2):
            await value(calls, session, "Later", "step_later", seconds=0.01)
        count = await value(calls, session, "Later", "step")
        await calls.end(session)
        return count

    async def play(calls):
        assert await asyncio.gather(*(one(calls, str(n)) for n in range(1024))) == [3] * 1024

    played(play, target("Later"), processes=8)


def test_asynchronous_calls_wait_together_beside_a_plain_one(tmp_path):
    async def play(calls):
        three = [value(calls, str(n), "fails_in_loop", what="x", meet=str(tmp_path)) for n in range(3)]
        assert await asyncio.gather(*three, value(calls, "s", "add", a=1)) == ["x", "x", "x", 2]

    played(play, target("fails_in_loop"), target("add"))


def test_only_the_variables_that_are_named_reach_a_process(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "a")
    monkeypatch.setenv("OTHER_TOKEN", "b")
    result = once(target("variables", environment=("OTHER_TOKEN",))).value
    assert result["OTHER_TOKEN"] == "b" and "SECRET_TOKEN" not in result
    assert result["TMPDIR"] == result["HOME"] and not Path(result["TMPDIR"]).exists()


SPOILT = (
    ("bytes", "NotJson", "returned bytes, which is not JSON"),
    ("nan", "NotJson", "returned nan at ['score'][1], which is not JSON"),
    ("surrogate", "NotJson", "lone surrogate"),
    ("object", "NotJson", "returned object"),
    ("circle", "NotJson", "which is not JSON"),
    ("large", "OutputTooLarge", "returned 10000002 bytes, more than the 65536 that a call may"),
)


def test_what_is_not_json_or_too_large_is_an_error_and_tuples_are_lists():
    async def play(calls):
        for what, cause, words in SPOILT:
            said = await failure(calls, "s", "returns", what=what)
            assert said[0] == cause and words in said[1]
            assert await value(calls, "s", "returns", what="tuple") == [1, "a"]

    played(play, target("returns"))


FAILURES = (
    ("raise", "Raised", "ValueError: no such page at "),
    ("exit", "Raised", "SystemExit: 3"),
    ("die", "Died", "its process ended: exit code 9"),
    ("signal", "Died", "its process ended: signal SIGUSR1"),
    ("close", "Died", "its process ended: signal SIGKILL"),
)


@pytest.mark.parametrize("function", ["fails", "fails_in_loop"])
def test_a_failure_is_an_answer(function):
    async def play(calls):
        for what, cause, words in FAILURES:
            said = await failure(calls, what, function, what=what)
            assert said[0] == cause and words in said[1]
            assert await value(calls, what, function, what="x") == "x"

    played(play, target(function))


@pytest.mark.parametrize(
    ("function", "what"),
    [("fails", "hang"), ("fails", "hang in C"), ("fails_in_loop", "refuse"), ("fails_in_loop", "hang")],
)
def test_a_call_that_hangs_is_ended(function, what, monkeypatch):
    monkeypatch.setattr(call_pool, "LOOP_GRACE_SECONDS", 0.2)
    error = once(target(function, seconds=0.3), what=what).error
    assert (error.cause, error.message) == ("TimedOut", "took longer than 0.3 s")


def test_a_copy_that_a_function_forks_does_not_answer():
    assert once(target("fails"), what="fork and return").value == "fork and return"


MISFITS = (
    (("nothing", None, {}), 'there is no target "nothing"; there are add, Counter, Broken'),
    (("add", None, {}), "missing a required argument: 'a'"),
    (("add", None, {"a": 1, "c": 2}), "unexpected keyword argument 'c'"),
    (("add", None, {"a": float("nan")}), "the arguments are not JSON"),
    (("add", None, {"a": b"x"}), "the arguments are not JSON"),
    (("add", "step", {"a": 1}), "is a function and has no method 'step'"),
    (("Counter", None, {}), "is a class: name the method to call"),
    (("Counter", "_secret", {}), "has no method '_secret'; it has fail, step, where"),
    (("Counter", "leap", {}), "has no method 'leap'"),
)


def test_a_call_that_does_not_fit_is_refused():
    async def play(calls):
        for call, words in MISFITS:
            error = (await calls.call("s", *call)).error
            assert error.cause == "Refused" and words in error.message
            assert await value(calls, "s", "add", a=1) == 2

    played(play, target("add"), target("Counter"), target("Broken"))


def test_an_object_that_cannot_be_made_is_a_failure():
    async def play(calls):
        cause, message = await failure(calls, "s", "Broken", "step")
        assert cause == "Raised" and "OSError: no display" in message

    played(play, target("Broken"))


def test_a_hang_costs_its_session_and_the_objects_beside_it():
    """One process: what waits behind the hang is asked again, an object in it is gone."""

    async def play(calls):
        await value(calls, "beside", "Counter", "step")
        hanging = asyncio.ensure_future(calls.call("guilty", "fails", None, {"what": "hang"}))
        behind = [asyncio.ensure_future(value(calls, str(n), "add_later", a=n, seconds=0.5)) for n in range(5)]
        plain = asyncio.ensure_future(value(calls, "plain", "add", a=1))
        assert (await hanging).error.cause == "TimedOut"
        assert await asyncio.gather(*behind) == [1, 2, 3, 4, 5] and await plain == 2
        cause, message = await failure(calls, "beside", "Counter", "step")
        assert cause == "Died" and message == (
            "the process that held this session's state is gone: took longer than 0.4 s"
        )
        await calls.end("beside")
        assert await value(calls, "beside", "Counter", "step") == 1

    played(play, target("fails", seconds=0.4), target("add_later"), target("add"), target("Counter"))


def test_of_several_calls_in_the_loop_the_one_that_ends_the_process_is_singled_out(tmp_path):
    async def play(calls):
        meet = {"meet": str(tmp_path)}
        answers = await asyncio.gather(
            *(calls.call(what, "fails_in_loop", None, {"what": what, **meet}) for what in ("die", "a", "b"))
        )
        assert [answer.value for answer in answers[1:]] == ["a", "b"]
        assert answers[0].error.cause == "Died" and "exit code 9" in answers[0].error.message

    played(play, target("fails_in_loop"))


def test_of_several_calls_in_the_loop_the_one_that_holds_it_up_is_singled_out(tmp_path, monkeypatch):
    monkeypatch.setattr(call_pool, "LOOP_GRACE_SECONDS", 0.2)

    async def play(calls):
        meet = {"meet": str(tmp_path)}
        answers = await asyncio.gather(
            *(calls.call(what, "fails_in_loop", None, {"what": what, **meet}) for what in ("hang", "a", "b"))
        )
        assert [answer.value for answer in answers[1:]] == ["a", "b"]
        assert answers[0].error.cause == "TimedOut"

    played(play, target("fails_in_loop", seconds=1.0))


def test_isolated_sessions_have_a_process_and_a_folder_each():
    async def play(calls):
        first = await value(calls, "1", "file_in_folder", file="x")
        assert await value(calls, "1", "file_in_folder", file="x") == [False, first[1]]
        second = await value(calls, "2", "file_in_folder", file="x")
        assert first[0] and second[0] and first[1] != second[1]
        pids = [await value(calls, session, "own_pid") for session in "112"]
        assert pids[0] == pids[1] != pids[2]
        await calls.end("1")
        wait_for(lambda: not Path(first[1]).exists())
        assert Path(second[1]).exists() and not is_gone(pids[2])
        wait_for(lambda: is_gone(pids[0]))
        assert (await value(calls, "1", "file_in_folder", file="x"))[0]
        return second[1]

    folder = played(play, target("file_in_folder", isolated=True), target("own_pid", isolated=True))
    assert not Path(folder).exists()


def test_objects_of_an_isolated_session_are_closed_before_its_process_ends(tmp_path):
    async def play(calls):
        await value(calls, "1", "Closing", "note", path=str(tmp_path / "closed"))
        await calls.end("1")
        assert (tmp_path / "closed").read_text() == "closed"
        # one that is late does not hold its end up
        hanging = asyncio.ensure_future(calls.call("2", "Closing", "hang", {}))
        await calls.call("3", "Closing", "note", {"path": str(tmp_path / "other")})
        await calls.end("2")
        hanging.cancel()

    played(play, target("Closing", isolated=True), processes=2)


def test_a_close_that_hangs_costs_its_session_its_limit_and_nobody_anything():
    async def play(calls):
        for session in "12":
            await calls.call(session, "Closing", "note", {})
        await value(calls, "3", "own_pid")
        ending = asyncio.ensure_future(calls.end("1"))
        busy = [await value(calls, "3", "own_pid") for _ in range(3)]
        assert not ending.done() and len(set(busy)) == 1
        await ending
        assert await value(calls, "3", "own_pid") == busy[0]
        assert (await failure(calls, "2", "Closing", "hang"))[0] == "TimedOut"

    played(play, target("Closing", isolated=True, seconds=1.0), target("own_pid", isolated=True), processes=2)


def test_isolated_sessions_take_turns_where_there_are_more_than_processes():
    async def play(calls):
        assert await asyncio.gather(*(value(calls, str(n), "add", a=n) for n in range(20))) == list(range(1, 21))

    played(play, target("add", isolated=True), processes=2)


def test_a_hang_in_an_isolated_session_costs_that_session_only():
    async def play(calls):
        assert (await failure(calls, "1", "fails", what="hang"))[0] == "TimedOut"
        assert (await failure(calls, "1", "fails", what="x"))[0] == "Died"
        assert await value(calls, "2", "fails", what="x") == "x"

    played(play, target("fails", isolated=True, stateful=True, seconds=1.0))


def test_a_function_on_whose_calls_none_counts_has_a_new_process_after_a_hang():
    async def play(calls):
        hanging = asyncio.ensure_future(calls.call("1", "fails", None, {"what": "hang"}))
        behind = asyncio.ensure_future(value(calls, "1", "fails", what="x"))
        assert (await hanging).error.cause == "TimedOut"
        assert await behind == "x" == await value(calls, "1", "fails", what="x")

    played(play, target("fails", isolated=True, seconds=1.0))


IMPORTED = """
import os
from pathlib import Path
with (Path(__file__).parent / "imports").open("a") as file:
    file.write("once\\n")
LOADED = []
def count():
    LOADED.append(1)
    return len(LOADED)
def own_pid():
    return os.getpid()
"""
UNCOPIED = {
    "threads": "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n",
    "files": "kept = open(__file__)\n",
}


@pytest.mark.parametrize("left", [None, "threads", "files"])
def test_isolated_processes_are_copies_of_one_that_has_imported_unless_they_cannot_be(left, tmp_path):
    (tmp_path / "imported_tools.py").write_text(IMPORTED + UNCOPIED.get(left, ""))

    async def play():
        async with calling(target("imported_tools:count", isolated=True), processes=3, pythonpath=[tmp_path]) as calls:
            await calls.check()
            counts = await asyncio.gather(*(value(calls, str(n), "count") for n in [*range(20), *range(20)]))
            assert counts == [1] * 20 + [2] * 20
        assert (tmp_path / "imports").read_text().count("once") == (1 if left is None else 21)

    asyncio.run(play())


def test_isolated_processes_import_for_themselves_once_what_is_copied_has_ended(tmp_path):
    (tmp_path / "imported_tools.py").write_text(IMPORTED)

    async def play():
        names = ("count", "own_pid")
        targets = [target(f"imported_tools:{name}", isolated=True) for name in names]
        async with calling(*targets, pythonpath=[tmp_path]) as calls:
            assert await value(calls, "1", "count") == 1
            pid = await value(calls, "1", "own_pid")
            (copied,) = {*children_of(parent_of(pid))} - {pid}
            folders = Path(f"/proc/{pid}/cwd").resolve().parent
            os.kill(copied, signal.SIGSTOP)
            waiting = asyncio.ensure_future(value(calls, "2", "count"))
            await asyncio.sleep(0)
            wait_for(lambda: len(os.listdir(folders)) == 3)  # the guardian has heard of it
            os.kill(copied, signal.SIGKILL)
            wait_for(lambda: is_gone(copied))
            assert await waiting == 1
            assert [await value(calls, session, "count") for session in "13"] == [2, 1]

    asyncio.run(play())
    assert (tmp_path / "imports").read_text().count("once") == 3


def test_sessions_that_end_before_they_have_a_copy_leave_none():
    async def play(calls):
        first = [asyncio.ensure_future(calls.call(str(n), "own_pid", None, {})) for n in range(30)]
        await asyncio.sleep(0)
        for n in range(0, 30, 2):
            await calls.end(str(n))
            first[n].cancel()
        pids = [(await call).value for call in first[1::2]]
        assert len(set(pids)) == 15 and None not in pids
        await value(calls, "last", "own_pid")
        wait_for(lambda: len(children_of(parent_of(pids[0]))) == 17)  # with the one that is copied

    played(play, target("own_pid", isolated=True), processes=4)


def test_without_shared_targets_no_shared_process_is_started():
    async def play(calls):
        await calls.check()
        pid = await value(calls, "1", "own_pid")
        assert len(children_of(parent_of(pid))) == 2

    played(play, target("own_pid", isolated=True), processes=4)


def test_what_is_printed_is_passed_on_within_bounds(capfd):
    assert once(target("prints"), count=1000).value == 1000
    assert "x" * 1000 in capfd.readouterr().out
    error = once(target("prints"), count=10_000_000).error
    assert (error.cause, error.message) == ("OutputTooLarge", "printed more than 65536 bytes")
    assert len(capfd.readouterr().out) < 1 << 17


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"call": 1, "value": NaN}', "mine"),
        ('{"call": 1, "value": [' + "[" * 100_000, "mine"),
        ("[1]\n3\n{}\n\xff\n" + '{"ready": 1, "refused": 2}\n{"call": [], "value": 1}', "mine"),
    ],
)
def test_what_user_code_writes_into_its_pipe_harms_nobody_else(text, value):
    assert once(target("writes_into_pipe", output_bytes=1 << 20), text=text).value == value


def test_an_answer_without_end_costs_its_process():
    error = once(target("writes_into_pipe", output_bytes=1000), text='{"x": "' + "x" * 200_000).error
    assert error is None or error.cause == "OutputTooLarge"


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("user_tools:absent", "user_tools has no 'absent'"),
        ("no_such_module:f", "no module 'no_such_module'"),
        ("user_tools:NOT_CALLABLE", "is a int, not a function or class"),
        ("user_tools", "is not of the form module:function"),
    ],
)
@pytest.mark.parametrize("isolated", [False, True])
def test_a_target_that_cannot_be_called_is_refused_by_name(run, words, isolated):
    async def play():
        async with calling(Target(run, {}, LIMITS, isolated)) as calls:
            with pytest.raises(InvalidJob) as caught:
                await calls.check()
            name = run.partition(":")[2]
            assert f'target "{name}": {run}' in str(caught.value) and words in str(caught.value)
            assert (await calls.call("s", name, None, {})).error.cause == "Refused"

    asyncio.run(play())


@pytest.mark.parametrize("isolated", [False, True])
def test_a_module_that_ends_its_process_is_named(isolated, tmp_path):
    (tmp_path / "ending_tools.py").write_text("import os\nos._exit(4)\n")

    async def play():
        async with calling(Target("ending_tools:f", {}, LIMITS, isolated), pythonpath=[tmp_path]) as calls:
            with pytest.raises(InvalidJob, match=r"importing user code \(ending_tools:f\).*exit code 4"):
                await calls.check()
            assert (await calls.call("s", "f", None, {})).error.cause == "Died"

    asyncio.run(play())


def test_targets_that_can_be_called_are_checked():
    async def play(calls):
        await calls.check()
        await calls.check()
        assert await value(calls, "s", "add", a=1) == 2

    played(play, target("add"), target("Counter", isolated=True))


def test_nothing_is_left_behind(tmp_path):
    before = len(os.listdir("/proc/self/fd"))

    async def run():
        async with calling(target("forks")) as calls:
            call = asyncio.ensure_future(calls.call("s", "forks", None, {"folder": str(tmp_path)}))
            while len(pids(tmp_path)) < 2:
                await asyncio.sleep(0.01)
        assert (await call).error.message == "calls were closed"

    asyncio.run(run())
    wait_for(lambda: all(map(is_gone, pids(tmp_path))))
    assert len(os.listdir("/proc/self/fd")) == before


def pids(folder):
    path = folder / "pids"
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


def test_a_guardian_that_ends_is_reported():
    async def play(calls):
        await value(calls, "s", "Counter", "step")
        guardian = int(
            Path(f"/proc/{await value(calls, 's', 'own_pid')}/stat").read_text().rpartition(")")[2].split()[1]
        )
        os.kill(guardian, signal.SIGKILL)
        wait_for(lambda: is_gone(guardian))
        cause, message = await failure(calls, "s", "Counter", "step")
        assert cause == "Died" and "the guardian ended" in message
        assert (await failure(calls, "t", "own_pid"))[0] == "Died"

    played(play, target("Counter"), target("own_pid"))


def test_a_queue_gives_calls_in_order_by_kind():
    async def play():
        flags = {}
        queue = call_process.CallQueue(flags)
        loop = asyncio.get_running_loop()
        calls = [
            call_process.PendingCall(n, name, target("add"), b"", loop.create_future(), False)
            for n, name in enumerate(["plain", "later", "plain", "later"])
        ]
        for call in calls:
            queue.add(call)
        assert queue.take(False) is None and queue
        flags.update(plain=False, later=True)
        assert queue.take(True) is calls[1] and queue.take(False) is calls[0]
        calls[2].fail("Died", "its caller is gone")
        assert queue.take(False) is None
        assert queue.clear() == [calls[3]] and not queue

    asyncio.run(play())
