"""Several workers, one of them the lead, from the first step to the last: who waits for whom, and where all end."""

import tempfile
import threading
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.checkpoint.manifest import committed
from rljob_worker.checkpoint.writer import Committer, RankFiles
from rljob_worker.errors import BadData, InvalidJob, PeerLost, StorageError
from rljob_worker.runtime.tests.gang import Gang, gang_plan, learnt_by
from rljob_worker.tests.waiting import wait_for

STEPS = 5
NUM_WORKERS = 3


def new_gang(folder, staleness=0, **options):
    """All workers train and validate; with a staleness the last one generates, and alone validates."""
    plan = gang_plan(**{"stop": {"steps": STEPS}, "checkpoint": {"everySteps": 2}, "staleness": staleness, **options})
    return Gang(folder, plan, generators=frozenset({NUM_WORKERS - 1} if staleness else ()))


@cache
def whole_story(staleness=0):
    """What an undisturbed run writes down."""
    with tempfile.TemporaryDirectory() as folder:
        gang = new_gang(Path(folder), staleness=staleness)
        assert [one.error for one in gang.run()] == [None] * NUM_WORKERS
        return gang.story


def codes(ended):
    return {one.words.code for one in ended}


def last_step(ended):
    (last,) = {one.words.step for one in ended}
    return last


def place_of(log, *entry):
    return log.index(entry)


def assert_governed(log, delay, last):
    """No worker ended a step without the verdict that governs it."""
    for step in range(delay, last + 1):
        for worker in range(NUM_WORKERS):
            assert place_of(log, "report", worker, step) > place_of(log, "verdict", 0, step - delay)


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_a_job_runs_to_its_end_and_nobody_leaves_before_all_is_written(tmp_path, staleness):
    gang = new_gang(tmp_path, staleness=staleness)
    ended = gang.run()
    assert [(one.words.code, one.words.step, one.words.checkpoint) for one in ended] == [(0, STEPS, STEPS)] * 3
    assert {one.words.cause for one in ended} == {"reached step 5"}
    assert gang.steps == [0, 1, 2, 3, 4, 5]
    assert ["validation/accuracy" in line for line in gang.lines] == [True, *[False] * 4, True]
    assert [one.committed_by_then for one in ended] == [(4, 5)] * 3  # the newest two are kept
    assert_governed(gang.channel.log, staleness + 1, STEPS)
    assert gang.story == whole_story()
    assert '"validation/accuracy"' in (gang.folder / "report.html").read_text(), "the page of the run"


def test_what_is_written_does_not_depend_on_how_reports_met(tmp_path):
    for seed in range(3):
        gang = new_gang(tmp_path / str(seed))
        gang.run(seed=seed)
        assert gang.story == whole_story()


def test_samples_are_those_of_all_workers_in_their_order(tmp_path):
    gang = new_gang(tmp_path, stop={"steps": 1})
    gang.run()
    learnt = '"learnt": 0.1}\n'
    lines = "".join(f'{{"step": 1, "worker": {worker}, {learnt}' for worker in range(NUM_WORKERS))
    assert gang.story[1] == lines


def test_times_are_reported_for_the_step_that_they_were_part_of(tmp_path):
    gang = new_gang(tmp_path)
    gang.run()
    of_steps = [{name for name in line if name.startswith("time/")} for line in gang.lines]
    ends = {"time/step_seconds", "time/overhead_fraction", "time/learn_seconds", "time/verdict_wait_seconds"}
    reports = {"time/control_seconds"}
    saves = {"time/checkpoint_seconds", "time/checkpoint_wait_seconds"}
    written = {"time/checkpoint_write_seconds"}  # of the step in which that came to its end: this or one after it
    assert of_steps[0] == set()
    assert of_steps[1] == ends  # what the report on the opening took is not part of a step
    assert of_steps[3] - written == ends | reports
    assert of_steps[2] - written == of_steps[4] - written == ends | reports | saves
    assert of_steps[5] == ends | reports | saves | written
    assert [line["weights/version"] for line in gang.lines] == list(range(STEPS + 1))
    assert {line["data/bytes_weights/actor"] for line in gang.lines} == {24.0}  # 8 of each worker


@pytest.mark.parametrize("staleness", [0, 2])
@pytest.mark.parametrize("what", ["report/1", "report/0", "collect", "verdict"])
def test_whatever_is_late_others_run_on_until_its_verdict_governs_them(tmp_path, staleness, what):
    """A laggard, or a lead that is slow to collect or to judge, in step 1; the others begin step 2 + staleness."""
    begun = set()
    gang = new_gang(tmp_path, staleness=staleness)

    def let_go_once_the_others_wait():
        others = {1, 2} if what == "report/0" else {0, 2}
        wait_for(lambda: begun >= {("stage", worker, 2 + staleness) for worker in others})
        gang.channel.let_go(what, 1)

    ended = gang.run(
        lambda *moment: begun.add(moment), prepare=lambda b: b.hold(what, 1), meanwhile=let_go_once_the_others_wait
    )
    assert last_step(ended) == STEPS and gang.story == whole_story()
    assert_governed(gang.channel.log, staleness + 1, STEPS)


@settings(max_examples=10)
@given(
    worker=st.integers(0, NUM_WORKERS - 1),
    step=st.integers(1, STEPS),
    what=st.sampled_from(["stage", "save"]),
    staleness=st.integers(0, 2),
)
def test_a_job_that_is_asked_to_stop_stops_soon_and_goes_on_as_if_it_had_not(worker, step, what, staleness):
    def ask(*moment):
        if moment == (what, worker, step):
            gang.channel.end(worker).request_stop()

    with tempfile.TemporaryDirectory() as folder:
        gang = new_gang(Path(folder), staleness=staleness)
        stopped = gang.run(ask)
        last = last_step(stopped)
        if last < STEPS:
            assert step <= last <= step + staleness + 1
            assert codes(stopped) == {ExitCode.STOPPED} and {one.words.cause for one in stopped} == {"asked to stop"}
            assert "validation/accuracy" not in gang.lines[-1]
        assert gang.steps == list(range(last + 1))
        assert all(one.committed_by_then[-1] == last == one.words.checkpoint for one in stopped)
        resumed = gang.run()
        assert codes(resumed) == {ExitCode.DONE} and last_step(resumed) == STEPS
        assert gang.story == whole_story()


def test_a_request_before_the_first_step_ends_the_job_after_one(tmp_path):
    gang = new_gang(tmp_path)
    stopped = gang.run(prepare=lambda channel: channel.end(2).request_stop())
    assert (last_step(stopped), codes(stopped)) == (1, {ExitCode.STOPPED})
    assert gang.steps == [0, 1] and gang.checkpoints == (1,)


def test_a_request_late_in_the_job_ends_a_finished_one(tmp_path):
    gang = new_gang(tmp_path)
    # step 4 begins once the verdict on 2 is known; that on 4 is the next that anything can be part of
    done = gang.run(lambda what, worker, step: step == STEPS and gang.channel.end(worker).request_stop())
    assert (last_step(done), codes(done)) == (STEPS, {ExitCode.DONE})
    assert gang.story == whole_story()


@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_a_job_that_is_good_enough_ends_with_the_step_that_its_verdict_governs(tmp_path, staleness):
    """Rewards are (0.1 s (s + 1) / 2 + 21) / 9 in step s: 2.34, 2.37, 2.40 ... ; without validation data they count."""
    train = {"train": [{"path": "some/data"}], "batchSize": 3}
    stop = {"steps": 20, "rewardAbove": 2.36}
    gang = new_gang(tmp_path, staleness=staleness, stop=stop, data=train)
    ended = gang.run()
    assert [line["reward/mean"] > 2.36 for line in gang.lines[:2]] == [False, True]
    assert last_step(ended) == 2 + staleness + 1 and codes(ended) == {ExitCode.DONE}
    assert {one.words.cause for one in ended} == {f"reward {gang.lines[1]['reward/mean']:.4g} is above 2.36"}
    assert gang.checkpoints[-1] == last_step(ended)


def test_the_last_step_of_a_job_that_is_good_enough_is_validated(tmp_path):
    """Accuracy is 0.1 s (s + 1) / 2: 0.3 in step 2, which validates; so step 3 is the last."""
    gang = new_gang(tmp_path, stop={"steps": 20, "rewardAbove": 0.2}, validation={"everySteps": 2})
    assert last_step(gang.run()) == 3
    assert ["validation/accuracy" in line for line in gang.lines] == [True, False, True, True]


def test_a_job_without_validation_begins_with_its_first_step(tmp_path):
    gang = new_gang(tmp_path, data={"train": [{"path": "some/data"}], "batchSize": 3}, stop={"steps": 1})
    assert codes(gang.run()) == {ExitCode.DONE}
    assert gang.steps == [1]


def versions_of(gang, **options):
    """The versions that rank 0's rollout engines got, in an attempt of a gang."""
    versions = []

    def note(what, worker, version):
        if (what, worker) == ("sync", 0):
            versions.append(version)

    gang.run(note, **options)
    return versions


def test_weights_that_nobody_will_generate_with_stay_where_they_are(tmp_path):
    train = {"train": [{"path": "some/data"}], "batchSize": 3}
    assert versions_of(new_gang(tmp_path / "validates")) == [0, 1, 2, 3, 4, 5]
    assert versions_of(new_gang(tmp_path / "does-not", data=train)) == [0, 1, 2, 3, 4]
    good = new_gang(tmp_path / "good", data=train, stop={"steps": 20, "rewardAbove": 2.36})
    assert versions_of(good) == [0, 1, 2] and good.steps == [1, 2, 3]


def test_a_job_that_stops_measures_its_last_step_as_one_that_goes_on(tmp_path):
    gang = new_gang(tmp_path, data={"train": [{"path": "some/data"}], "batchSize": 3})
    assert versions_of(gang, prepare=lambda channel: channel.end(1).request_stop()) == [0, 1, 2]
    assert versions_of(gang) == [2, 3, 4]


def test_what_the_opening_moves_is_no_part_of_the_first_step(tmp_path):
    gang = new_gang(tmp_path, data={"train": [{"path": "some/data"}], "batchSize": 3})
    gang.run(prepare=lambda channel: channel.end(1).request_stop())
    gang.run()
    # the last step of the first attempt is 2; the second opens with the weights that it left, and begins with 3
    assert [line.get("weights/version") for line in gang.lines] == [1, 2, 3, 4, None]
    assert [line["data/bytes_weights/actor"] for line in gang.lines] == [24, 24, 24, 24, 0]


def test_a_job_that_is_done_says_so(tmp_path):
    gang = new_gang(tmp_path)
    gang.run()
    again = gang.run()
    assert [(one.words.code, one.words.step, one.words.cause) for one in again] == [(0, 5, "already finished")] * 3
    assert gang.channel.log == [("opening", 0, 0)] and gang.story == whole_story()


@settings(max_examples=10)
@given(
    worker=st.integers(0, NUM_WORKERS - 1),
    step=st.integers(1, STEPS),
    what=st.sampled_from(["stage", "save"]),
    staleness=st.integers(0, 2),
    error=st.sampled_from([BadData("wrong"), ZeroDivisionError("bug"), KeyboardInterrupt()]),
)
def test_after_any_failure_a_job_goes_on_from_its_last_commit(worker, step, what, staleness, error):
    def fail(*moment):
        if moment == (what, worker, step):
            raise error

    with tempfile.TemporaryDirectory() as folder:
        gang = new_gang(Path(folder), staleness=staleness)
        failed = gang.run(fail)
        if what == "stage" or step in (2, 4, STEPS):
            assert failed[worker].error is error
            assert all(isinstance(one.error, PeerLost) for one in failed if one is not failed[worker])
            # what was committed was reported by all, and so saved by all
            assert set(gang.checkpoints) <= {item for item in (2, 4) if item < step}
            if worker == 0:  # a lead that fails commits what all have reported
                assert len(gang.checkpoints) == (step - 1) // 2
        assert last_step(gang.run()) == STEPS
        assert gang.story == whole_story()


def test_a_commit_that_fails_ends_the_lead_with_its_error_and_the_others_as_lost(tmp_path, monkeypatch):
    full, commit = StorageError("disk full"), Committer.commit

    def fail_once(committer, step, *, score):
        if step == STEPS and gang.attempt == 1:
            raise full
        return commit(committer, step, score=score)

    monkeypatch.setattr(Committer, "commit", fail_once)
    gang = new_gang(tmp_path)
    lead, *others = gang.run()
    assert lead.error is full and all(isinstance(one.error, PeerLost) for one in others)
    assert gang.checkpoints == (2, 4) and gang.steps == [0, 1, 2, 3, 4, 5]
    assert last_step(gang.run()) == STEPS and gang.story == whole_story()


def hold_writing(monkeypatch, step, rank, go, error=None):
    """That rank's part of the checkpoint of `step` is written once it may go; or not at all."""
    write = RankFiles.write

    def held(files, of_step, part):
        if (files.rank, of_step, files.owner.attempt) == (rank, step, 1):
            assert go.wait(TEST_TIMEOUT_SECONDS)
            if error is not None:
                raise error
        write(files, of_step, part)

    monkeypatch.setattr(RankFiles, "write", held)


@pytest.mark.parametrize("rank", [0, 1])
def test_steps_go_on_while_a_checkpoint_is_written_until_the_next_one(tmp_path, monkeypatch, rank):
    """The checkpoint of step 2 is held until everybody has begun step 4, and nobody can begin step 5."""
    go, begun, committed_by_then = threading.Event(), set(), []
    hold_writing(monkeypatch, 2, rank, go)

    def let_go_at_step_4():
        wait_for(lambda: begun >= {("stage", worker, 4) for worker in range(NUM_WORKERS)})
        committed_by_then.append(gang.checkpoints)
        go.set()

    gang = new_gang(tmp_path)
    ended = gang.run(lambda *moment: begun.add(moment), meanwhile=let_go_at_step_4)
    assert last_step(ended) == STEPS and gang.story == whole_story()
    assert committed_by_then == [()] and gang.checkpoints == (4, 5)


@pytest.mark.parametrize("step", [2, STEPS])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_part_that_cannot_be_written_ends_its_worker_with_the_reason(tmp_path, monkeypatch, rank, step):
    full, go = StorageError("disk full"), threading.Event()
    go.set()
    hold_writing(monkeypatch, step, rank, go, full)
    gang = new_gang(tmp_path)
    ended = gang.run()
    assert ended[rank].error is full
    assert all(isinstance(one.error, PeerLost) for one in ended if one is not ended[rank])
    assert gang.checkpoints == ((2, 4) if step == STEPS else ())
    assert last_step(gang.run()) == STEPS and gang.story == whole_story()


def test_without_shared_storage_nothing_is_saved(tmp_path):
    gang = new_gang(tmp_path)
    gang.keeps_checkpoints = False
    ended = gang.run()
    assert [one.words.checkpoint for one in ended] == [None] * 3
    assert gang.checkpoints == () and gang.story == whole_story()


def generating_gang(folder, staleness, every_steps=2, **options):
    """Worker 0 trains, 1 and 2 generate."""
    spec = {"stop": {"steps": STEPS}, "validation": {"everySteps": every_steps}, "checkpoint": {"everySteps": 2}}
    return Gang(folder, gang_plan(staleness=staleness, **spec | options), generators=frozenset({1, 2}))


def validated(gang):
    """By step; every step that is validated has been by what it has learnt itself."""
    result = {line["step"]: line["validation/accuracy"] for line in gang.lines if "validation/accuracy" in line}
    assert result == {step: learnt_by(step) for step in result}
    return set(result)


@pytest.mark.parametrize("staleness", [1, 2, 4])
def test_generators_run_ahead_with_versions_that_depend_on_the_step_alone(tmp_path, staleness):
    events = []
    gang = generating_gang(tmp_path, staleness)
    ended = gang.run(lambda *event: events.append(event))
    assert last_step(ended) == STEPS and gang.steps == [0, 1, 2, 3, 4, 5]
    # a generation step draws with what the last sync before it brought
    for worker in (1, 2):
        own = [(what, step) for what, who, step in events if who == worker and what in ("stage", "sync")]
        drawn_with = {
            step: max(s for kind, s in own[:at] if kind == "sync")
            for at, (what, step) in enumerate(own)
            if what == "stage"
        }
        assert drawn_with == {step: max(0, step - 1 - staleness) for step in range(1, STEPS + 1)}
    # steps of three groups, from the newest version that a generator has on
    in_flight = [line.get("rollout/groups_in_flight") for line in gang.lines]
    assert in_flight == [None, *(3 * min(step, staleness + 1) for step in range(1, STEPS + 1))]
    # validation of a step is by its own version, and stands in its own line
    assert validated(gang) == {0, 2, 4, 5}
    assert [line["weights/version"] for line in gang.lines][0] == 0


@settings(max_examples=10)
@given(
    staleness=st.integers(1, 3),
    every_steps=st.integers(0, 3),
    asked_by=st.integers(0, NUM_WORKERS - 1),
    asked_in=st.integers(1, STEPS),
    seed=st.integers(0, 9),
)
def test_a_stop_while_generators_are_ahead_is_where_all_go_on(staleness, every_steps, asked_by, asked_in, seed):
    def ask(*event):
        if event == ("stage", asked_by, asked_in):
            gang.channel.end(asked_by).request_stop()

    with tempfile.TemporaryDirectory() as folder:
        gang = generating_gang(Path(folder), staleness, every_steps)
        stopped = gang.run(ask, seed=seed)
        last = last_step(stopped)
        assert gang.steps == list(range(last + 1))
        resumed = gang.run(seed=seed)
        assert codes(resumed) == {ExitCode.DONE} and last_step(resumed) == STEPS
        nth = {step for step in range(1, STEPS) if every_steps and step % every_steps == 0}
        assert validated(gang) == {0, *nth, STEPS}


def test_a_checkpoint_of_another_staleness_is_refused_by_name(tmp_path):
    stopped = {"stop": {"steps": 3}}
    ahead, apace = generating_gang(tmp_path / "ahead", 2, **stopped), new_gang(tmp_path / "apace", **stopped)
    ahead.run()
    apace.run()
    ahead.plan, apace.plan = gang_plan(), gang_plan(staleness=1)
    error = ahead.run()[0].error
    assert isinstance(error, InvalidJob) and str(error) == (
        "the checkpoint of step 3 keeps versions 1, 2 of actor, and with rollout.maxStaleness 0 the steps after it are "
        "drawn with no version besides its own: it is of a job with another maxStaleness, or with checkpoint.versions: "
        "Redraw. Set both to what they were, or write Redraw to draw those steps anew"
    )
    assert "keeps no version of actor, and with rollout.maxStaleness 1 the steps after it are drawn with version 2" in (
        str(apace.run()[0].error)
    )


def test_where_no_versions_are_kept_steps_in_flight_are_drawn_anew(tmp_path):
    redraw = {"checkpoint": {"everySteps": 2, "versions": "Redraw"}}
    gang = generating_gang(tmp_path, 2, **redraw, stop={"steps": 3})
    gang.run()
    assert not list(tmp_path.rglob("version-*"))
    events, longer = [], generating_gang(tmp_path, 2, **redraw, stop={"steps": 6})
    longer.attempt = 1
    longer.run(lambda *event: events.append(event))
    own = [(what, step) for what, who, step in events if who == 1 and what in ("stage", "sync")]
    # 4 and 5 with version 3 of the checkpoint, where a job that was not interrupted has 1 and 2; then as it has
    assert own == [("sync", 3), ("stage", 4), ("stage", 5), ("stage", 6), ("sync", 4), ("sync", 6)]


def scores(gang):
    return {item.step: item.manifest.score for item in committed(gang.folder / "checkpoints")}


def test_a_commit_does_not_wait_for_the_validation_of_its_step(tmp_path):
    gang = generating_gang(tmp_path, 2, checkpoint={"everySteps": 2, "keepLast": 5})

    def let_go_once_it_is_committed():
        wait_for(lambda: gang.checkpoints == (2,))
        assert gang.steps == [0, 1], "the line of step 2 has its validation"
        gang.channel.let_go("validation/1", 2)

    ended = gang.run(prepare=lambda c: c.hold("validation/1", 2), meanwhile=let_go_once_it_is_committed)
    assert last_step(ended) == STEPS and gang.steps == [0, 1, 2, 3, 4, 5] and validated(gang) == {0, 2, 4, 5}
    assert scores(gang) == {step: learnt_by(step) for step in (2, 4, 5)}, "by which the best is kept"


def failing_to_validate_step_2(gang):
    """Worker 1 validates step 0, and ends once step 2 is committed, which it validates next."""

    def fail(what, worker, step):
        if (what, worker) == ("validate", 1) and gang.steps:
            wait_for(lambda: gang.checkpoints == (2,))
            raise BadData("wrong")

    return fail


@pytest.mark.parametrize("staleness", [1, 2])
def test_a_validation_that_a_killed_attempt_owes_is_made_up_for(tmp_path, staleness):
    whole = generating_gang(tmp_path / "whole", staleness)
    whole.run()
    gang = generating_gang(tmp_path / "killed", staleness)

    failed = gang.run(failing_to_validate_step_2(gang))
    assert isinstance(failed[1].error, BadData) and gang.checkpoints == (2,) and gang.steps == [0, 1]
    resumed = gang.run()
    assert last_step(resumed) == STEPS and gang.story == whole.story
    assert scores(gang)[4] == learnt_by(4)


def test_a_job_that_ends_where_it_was_committed_does_not_wait_for_what_it_owes(tmp_path):
    gang = generating_gang(tmp_path, 1)

    gang.run(failing_to_validate_step_2(gang))
    gang.plan = gang_plan(staleness=1, stop={"steps": 2}, validation={"everySteps": 2})
    assert {one.words.cause for one in gang.run()} == {"already finished"}


@pytest.mark.parametrize("staleness", [0, 1, 2])
@pytest.mark.parametrize(
    "data", [{"train": [{"path": "some/data"}], "batchSize": 3}, None], ids=["reward", "validation"]
)
def test_a_verdict_that_is_on_its_way_when_an_attempt_is_killed_still_holds(tmp_path, staleness, data):
    """Rewards are 2.34, 2.37 in steps 1, 2; what is validated has learnt 0.1, 0.3. Either is enough in step 2."""
    data = data or {"train": [{"path": "some/data"}], "validation": [{"path": "more/data"}], "batchSize": 3}
    above = 0.2 if "validation" in data else 2.36
    stop = {"steps": 20, "rewardAbove": above}
    spec = {"stop": stop, "data": data, "checkpoint": {"everySteps": 1, "keepLast": 9}, "staleness": staleness}
    spec |= {"validation": {"everySteps": 2}} if "validation" in data else {}
    whole, killed = new_gang(tmp_path / "whole", **spec), new_gang(tmp_path / "killed", **spec)
    assert last_step(whole.run()) == 2 + staleness + 1

    def fail_in_step_3(what, worker, step):
        if (what, worker, step) == ("stage", 0, 3):
            wait_for(lambda: gang_has(killed, 2))
            raise BadData("wrong")

    assert isinstance(killed.run(fail_in_step_3)[0].error, BadData)
    assert last_step(killed.run()) == 2 + staleness + 1 and killed.story == whole.story


def gang_has(gang, step):
    """Whether the checkpoint of a step is committed, and its line written."""
    return step in gang.checkpoints and step in gang.steps
