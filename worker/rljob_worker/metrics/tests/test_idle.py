"""Who waited for what, in words."""

from rljob_worker.metrics.idle import has_idle_seconds, idle_sentence


def record(step, trainers=None, generators=None, step_seconds=1.2):
    """A line of metrics.jsonl. trainers, generators: idle seconds by cause; None: the job has no such workers."""
    line = {"step": step, "time/step_seconds": step_seconds, "time/update_wait_seconds": 9.0}
    for role, by_cause in (("trainers", trainers), ("generators", generators)):
        if by_cause is not None:
            line[f"time/{role}_idle_seconds"] = sum(by_cause.values())
            line |= {f"time/{role}_idle_seconds/{cause}": seconds for cause, seconds in by_cause.items()}
    return line


def test_a_single_cause_is_named_and_small_ones_are_left_out():
    """Of 0.31 s 0.01 s are less than a tenth."""
    line = record(7, {"rows": 0.3, "verdict": 0.01}, {"weights": 0.02, "room": 0.0})
    assert idle_sentence([line]) == (
        "trainers waited 0.31 s of 1.20 s per step for rows; "
        "generators waited 0.02 s of 1.20 s per step for weights (step 7)"
    )


def test_several_causes_stand_in_order_of_their_seconds():
    line = record(1, None, {"weights": 0.2, "room": 0.5, "verdict": 0.1, "rows": 0.0})
    assert idle_sentence([line]) == (
        "generators waited 0.80 s of 1.20 s per step (0.50 s for room to put rows, 0.20 s for weights, "
        "0.10 s for verdicts) (step 1)"
    )


def test_nobody_who_waited_waited_for_nothing():
    assert idle_sentence([record(1, {"rows": 0.0}, step_seconds=2.0)]) == (
        "trainers waited 0.00 s of 2.00 s per step (step 1)"
    )
    without_steps = {"step": 1, "time/trainers_idle_seconds": 1.0, "time/trainers_idle_seconds/weights_room": 1.0}
    assert idle_sentence([without_steps]) == "trainers waited 1.00 s per step for room to send weights (step 1)"


def test_means_are_over_the_last_twenty_steps_that_have_idle_seconds():
    """Steps 6 to 25 wait 0.06 to 0.25 s: 0.155 s in the mean of 20; validation before the first step has no time."""
    lines = [{"step": 0, "validation/accuracy": 1.0}]
    lines += [record(step, {"rows": step / 100}, step_seconds=step) for step in range(1, 26)]
    # 6 + 25 = 31, half of it is the mean step
    assert idle_sentence(iter(lines)) == "trainers waited 0.15 s of 15.50 s per step for rows (mean of steps 6 to 25)"


def test_a_run_that_has_no_idle_seconds_has_no_sentence():
    assert not has_idle_seconds(record(1))
    assert idle_sentence([record(1), record(2)]) == idle_sentence([]) == ""


def test_a_step_that_workers_begin_before_the_lead_is_as_long_as_for_them():
    """Trainers wait 4 s of 5 while the lead still starts, whose step is then 2 s; 0.5 of 2 in the next."""
    first, second = record(1, {"rows": 4.0}, step_seconds=2.0), record(2, {"rows": 0.5}, step_seconds=2.0)
    first["time/trainers_idle_fraction"], second["time/trainers_idle_fraction"] = 0.8, 0.25
    assert idle_sentence([first, second]) == (
        "trainers waited 2.25 s of 3.50 s per step for rows (mean of steps 1 to 2)"
    )
