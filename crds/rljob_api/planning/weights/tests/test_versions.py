"""Which version draws which step, by the number of the step alone."""

from hypothesis import given
from hypothesis import strategies as st

from rljob_api.planning.weights.versions import generating_version, num_updates, policy_version, versions_in_flight
from rljob_api.tests.builders import make_plan

PPO = "algorithm={name: PPO, critic: {warmupSteps: 2}}"


def spec_of(staleness, *overrides):
    spec = make_plan(*overrides).spec
    return spec.model_copy(update={"rollout": spec.rollout.model_copy(update={"max_staleness": staleness})})


def test_a_step_is_drawn_with_what_was_left_behind_so_many_steps_before():
    assert [generating_version(spec_of(0), step) for step in range(1, 6)] == [0, 1, 2, 3, 4]
    assert [generating_version(spec_of(1), step) for step in range(1, 6)] == [0, 0, 1, 2, 3]
    assert [generating_version(spec_of(3), step) for step in range(1, 6)] == [0, 0, 0, 0, 1]
    assert [generating_version(spec_of(1), step, oldest=2) for step in range(3, 7)] == [2, 2, 3, 4]


def test_steps_that_warm_a_critic_up_make_no_version():
    spec = spec_of(1, PPO)
    assert [policy_version(spec, step) for step in range(6)] == [0, 0, 0, 3, 4, 5]
    assert [generating_version(spec, step) for step in range(1, 8)] == [0, 0, 0, 0, 3, 4, 5]
    # version 3 is the first update, so that step 4 is drawn with weights one update behind
    assert [num_updates(spec, version) for version in (0, 3, 4, 5)] == [0, 1, 2, 3]


def test_a_checkpoint_keeps_what_the_steps_after_it_are_drawn_with():
    assert versions_in_flight(spec_of(0), 7) == ()
    assert versions_in_flight(spec_of(2), 7) == (5, 6)
    assert versions_in_flight(spec_of(2), 1) == (0,)
    assert versions_in_flight(spec_of(2, PPO), 4) == (0, 3)  # 5 with that of 2, which is 0, and 6 with that of 3


@given(staleness=st.integers(0, 6), step=st.integers(1, 30))
def test_what_is_in_flight_and_its_own_version_are_all_that_comes_after_a_checkpoint(staleness, step):
    spec = spec_of(staleness)
    coming = {generating_version(spec, step + ahead) for ahead in range(1, staleness + 2)}
    assert coming == {*versions_in_flight(spec, step), policy_version(spec, step)}
    assert len(coming) <= staleness + 1
