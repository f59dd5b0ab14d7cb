"""Times of stages as users write them."""

from fractions import Fraction

import pytest

from rljob_worker.cli.plan.stage_times import parse_times
from rljob_worker.errors import InvalidJob
from rljob_worker.tests.documents import plan_of

STAGES = "rollout, reference, reward, advantage, update, weights"


def test_lists_and_repeated_options_add_up():
    times = parse_times(["rollout=60, reward=2.5", "update=1e1,weights=0.1"], plan_of())
    assert times.stages == {"rollout": 60, "reward": Fraction(5, 2), "update": 10}
    # exactly what is written, which no float is
    assert times.weight_sync == Fraction(1, 10)
    assert (times.of("rollout"), times.of("reference")) == (60, 0)
    assert parse_times(["update=3"], plan_of()).weight_sync == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rolout=60", f"--times rolout=60: there is no stage rolout; did you mean rollout? there are: {STAGES}"),
        ("xyz=1", f"--times xyz=1: there is no stage xyz; there are: {STAGES}"),
        ("rollout", "--times rollout: write NAME=SECONDS, such as rollout=60"),
        ("", "--times : write NAME=SECONDS, such as rollout=60"),
        ("rollout=60,", "--times : write NAME=SECONDS, such as rollout=60"),
        ("rollout=", "--times rollout=: nothing is not a number; write seconds, such as 2.5"),
        ("rollout=fast", "--times rollout=fast: fast is not a number; write seconds, such as 2.5"),
        ("rollout=60s", "--times rollout=60s: 60s is not a number; write seconds, such as 2.5"),
        ("rollout=-1", "--times rollout=-1: write seconds from 0 to 1,000,000,000"),
        ("rollout=nan", "--times rollout=nan: write seconds from 0 to 1,000,000,000"),
        ("rollout=inf", "--times rollout=inf: write seconds from 0 to 1,000,000,000"),
        ("rollout=1000000001", "--times rollout=1000000001: write seconds from 0 to 1,000,000,000"),
        ("rollout=60,rollout=60", "--times rollout=60: rollout has a time already; write it once"),
        ("rollout=0,weights=5", "--times: all stages take 0 s; give at least one of them a time above 0"),
    ],
)
def test_what_is_no_time_is_refused(text, message):
    with pytest.raises(InvalidJob) as error:
        parse_times([text], plan_of())
    assert str(error.value).startswith(message)


def test_a_stage_may_have_the_name_of_the_weight_sync():
    stages = [
        {"name": "rollout", "run": "Rollout"},
        {"name": "weights", "run": "Reward", "after": ["rollout"]},
        {"name": "advantage", "run": "Advantage", "after": ["weights"]},
        {"name": "update", "run": "UpdatePolicy", "after": ["advantage"]},
    ]
    grpo = {"name": "GRPO", "groupSize": 2, "kl": {"coefficient": 0}}
    times = parse_times(["weights=4"], plan_of(dag={"stages": stages}, algorithm=grpo))
    assert (times.stages, times.weight_sync) == ({"weights": 4}, 0)
