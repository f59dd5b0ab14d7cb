"""Every case of `decide_start`, as a table."""

import pytest

from rljob_worker.checkpoint.resume import Existing, Finished, StartFrom, decide_start
from rljob_worker.errors import InvalidJob
from rljob_worker.supervision.restart import Commit, code_after_stop, resume_of_attempt, stop_seconds
from rljob_worker.tests.documents import job, plan_of

OLD = job(stop={"steps": 10}).spec
SLOWER = job(stop={"steps": 10}, training={"learningRate": 1e-5}).spec
LONGER = job(stop={"steps": 20}).spec
RESEEDED = job(stop={"steps": 10}, seed=7).spec
EAGER = job(stop={"steps": 10, "rewardAbove": 0.9}).spec


def existing(*steps, phase="Lost", spec=OLD):
    return Existing("runs/tiny", spec, phase, steps)


@pytest.mark.parametrize(
    ("wanted", "spec", "there", "start"),
    [
        ("auto", OLD, None, StartFrom("never", "")),
        ("never", OLD, None, StartFrom("never", "")),
        ("auto", OLD, existing(), StartFrom("never", "starting over in runs/tiny: the run there left no checkpoint")),
        (
            "auto",
            RESEEDED,
            existing(),
            StartFrom("never", "starting over in runs/tiny: the run there left no checkpoint"),
        ),
        ("auto", OLD, existing(3, 6), StartFrom("auto", "going on from the checkpoint of step 6")),
        ("3", OLD, existing(3, 6), StartFrom("3", "going on from the checkpoint of step 3")),
        ("3", OLD, existing(3, 10, phase="Succeeded"), StartFrom("3", "going on from the checkpoint of step 3")),
        (
            "auto", SLOWER, existing(6),
            StartFrom(
                "auto", "going on from the checkpoint of step 6, with changes: training.learningRate 1e-06 -> 1e-05"
            ),
        ),
        (
            "auto", OLD, existing(5, 10, phase="Succeeded"),
            Finished("runs/tiny is finished: 10 steps; raise stop.steps to train on"),
        ),
        (
            "auto", EAGER, existing(7, phase="Succeeded", spec=EAGER),
            Finished("runs/tiny is finished: 7 steps; raise stop.steps to train on"),
        ),
        (
            "auto", LONGER, existing(5, 10, phase="Succeeded"),
            StartFrom("auto", "going on from the checkpoint of step 10, with changes: stop.steps 10 -> 20"),
        ),
        ("auto", OLD, existing(4, phase="Failed"), StartFrom("auto", "going on from the checkpoint of step 4")),
    ],
)  # fmt: skip
def test_what_can_go_on(wanted, spec, there, start):
    assert decide_start(wanted, spec, there) == start


@pytest.mark.parametrize(
    ("wanted", "spec", "there", "message"),
    [
        ("3", OLD, None, "--resume 3: there is no run to go on with"),
        ("never", OLD, existing(), "runs/tiny holds a run already and resume is never; use --resume auto"),
        ("4", OLD, existing(3, 6), "--resume 4: runs/tiny has no checkpoint of that step; there are: 3, 6"),
        ("4", OLD, existing(), "there are: none"),
        ("soon", OLD, existing(3), "--resume soon is neither auto, never nor the number of a step"),
        ("-1", OLD, None, "--resume -1 is neither auto, never nor the number of a step"),
        ("auto", RESEEDED, existing(3), "spec.seed: 0 -> 7: random numbers would not go on where they stopped"),
        ("auto", RESEEDED, existing(10, phase="Succeeded"), "spec.seed: 0 -> 7"),
        ("3", RESEEDED, existing(3), r"Change it back, or give the new run another name"),
    ],
)
def test_what_is_refused(wanted, spec, there, message):
    with pytest.raises(InvalidJob, match=message):
        decide_start(wanted, spec, there)


def test_a_restart_goes_on_from_this_runs_checkpoints_only():
    # `--resume 3` as attempt 2, while attempt 1 had left a checkpoint of step 6
    left = [Commit(3, 1), Commit(6, 1)]
    assert resume_of_attempt(2, 2, "3", left) == "3"
    assert resume_of_attempt(3, 2, "3", left) == "3"
    assert resume_of_attempt(3, 2, "3", [Commit(3, 1), Commit(4, 2)]) == "auto"


def test_codes_after_a_request_to_stop():
    assert [code_after_stop(code) for code in (0, 76, 143, 130, 65)] == [0, 76, 130, 130, 65]


def test_a_gang_that_is_asked_to_stop_has_time_for_the_steps_until_the_next_verdict_governs():
    # the step that runs and the one after it, each 600 s at most, and a minute for the checkpoint
    assert stop_seconds(plan_of(dataBuffer={"deadlineSeconds": 600})) == 600 + 600 + 60
