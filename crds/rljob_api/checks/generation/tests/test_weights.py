"""Ways of weights that a placement does not allow."""

import pytest

from rljob_api.tests.builders import TWO_GROUPS, problems


def only(*overrides):
    (problem,) = problems(*overrides)
    assert problem.path == "spec.weightSync.transport"
    return problem


def test_weights_of_workers_apart_cannot_stay_in_one_process():
    problem = only(*TWO_GROUPS, "weightSync.transport=InProcess")
    assert problem.message == (
        "group train trains what group rollout generates with, and their workers share no process"
    )
    assert "Write Auto, DataBuffer or Collective" in problem.fix


@pytest.mark.parametrize("asked", ["DataBuffer", "Collective"])
def test_weights_of_workers_that_do_both_go_nowhere(asked):
    problem = only(f"weightSync.transport={asked}")
    assert problem.message == "the workers of group train train and generate, so that weights go nowhere"


@pytest.mark.parametrize("asked", ["Auto", "InProcess"])
def test_what_a_colocated_job_may_say(asked):
    assert problems(f"weightSync.transport={asked}") == []


@pytest.mark.parametrize("asked", ["Auto", "DataBuffer", "Collective"])
def test_what_a_job_with_groups_apart_may_say(asked):
    assert problems(*TWO_GROUPS, f"weightSync.transport={asked}") == []


def test_broadcasts_are_for_jobs_with_one_version_at_a_time():
    result = problems(*TWO_GROUPS, "weightSync.transport=Collective", "rollout.maxStaleness=2")
    (problem,) = [item for item in result if item.path == "spec.weightSync.transport"]
    assert problem.message == "broadcasts keep no version, and with rollout.maxStaleness 2 several exist at once"
    assert "Write Auto or DataBuffer" in problem.fix


def test_generation_is_ahead_of_training_where_it_has_workers_of_its_own():
    assert problems(*TWO_GROUPS, "rollout.maxStaleness=2") == []
    (problem,) = problems("rollout.maxStaleness=2")
    assert (problem.path, problem.found) == ("spec.rollout.maxStaleness", "2")
    assert problem.message == (
        "the workers of group train generate and train, so that neither can be ahead of the other"
    )
    (problem,) = problems(*TWO_GROUPS, "rollout.maxStaleness=2", "weightSync.delta={}")
    assert problem.path == "spec.weightSync.delta"
    assert problem.message == "with rollout.maxStaleness 2 a checkpoint keeps versions, and changes alone are none"


def test_leases_are_taken_where_generation_has_workers_of_its_own():
    assert problems(*TWO_GROUPS, "rollout.leaseRows=6") == []
    (problem,) = problems("rollout.leaseRows=6")
    assert (problem.path, problem.found) == ("spec.rollout.leaseRows", "6")
    assert problem.message == (
        "the workers of group train generate and train, and draw equal parts of a step, not leases"
    )
    assert problem.fix.startswith("Leave it out, or write two workerGroups")
    (problem,) = problems(*TWO_GROUPS, "rollout.leaseRows=6", "rollout.partial={tokensPerRound: 8, maxCarries: 3}")
    assert problem.message.startswith("with rollout.partial rows go on on the worker that drew them")
    (problem,) = problems(*TWO_GROUPS, "rollout.leaseRows=0")
    assert problem.path == "spec.rollout.leaseRows"


def test_a_job_has_more_steps_than_it_may_be_ahead():
    assert problems(*TWO_GROUPS, "rollout.maxStaleness=2", "stop.steps=3") == []
    (problem,) = problems(*TWO_GROUPS, "rollout.maxStaleness=2", "stop.steps=2")
    assert problem.message == "the job ends with step 2, and all its steps would be drawn with the first weights"
    assert problem.fix == "Write at most 1, or more stop.steps."


def test_only_what_changed_is_sent_where_anything_is():
    assert problems(*TWO_GROUPS, "weightSync={delta: {fullEvery: 2}}") == []
    assert problems(*TWO_GROUPS, "weightSync={delta: {}, transport: Collective}") == []
    for asked in ("Auto", "InProcess"):
        (problem,) = problems(f"weightSync={{delta: {{}}, transport: {asked}}}")
        assert (problem.path, problem.found) == ("spec.weightSync.delta", '{"fullEvery": 32}')
        assert problem.message == (
            "the workers of group train train and generate (InProcess), so that weights are not sent"
        )
    (problem,) = problems(*TWO_GROUPS, "weightSync={delta: {fullEvery: 1}}")
    assert problem.path == "spec.weightSync.delta.fullEvery"


def with_profiles(train, rollout):
    groups = ", ".join(
        f"{{name: {name}, accelerator: {{profile: {profile}}}}}"
        for name, profile in (("train", train), ("rollout", rollout))
    )
    return f"workerGroups=[{groups}]", "weightSync.transport=Collective"


def test_broadcasts_need_the_same_collectives_on_both_sides():
    assert problems(*with_profiles("cpu", "cpu")) == problems(*with_profiles("nvidia", "nvidia-h100")) == []
    problem = only(*with_profiles("nvidia", "cpu"))
    assert problem.message == (
        "group train has collectives of nccl and group rollout of gloo; broadcasts between groups need the same on "
        "both, one of gloo, nccl"
    )
    assert "group train has collectives of hccl" in only(*with_profiles("ascend-910", "ascend-910")).message


def test_weights_that_are_broadcast_take_no_room_in_data_buffers():
    little = "dataBuffer.memory=12Mi"
    assert problems(*TWO_GROUPS, little, "weightSync.transport=Collective") == []
    assert problems(*TWO_GROUPS, little)[0].path == "spec.dataBuffer.memory"


def test_versions_wait_on_devices_where_they_come_ahead_to_workers_that_stay():
    def said(*overrides):
        (problem,) = [item for item in problems(*overrides) if item.path == "spec.weightSync.staging"]
        assert problem.found == '"Device"' and "Write Auto or Host" in problem.fix
        return problem.message

    device, ahead = "weightSync.staging=Device", "rollout.maxStaleness=1"
    assert problems(*TWO_GROUPS, ahead, device) == []
    assert said(*TWO_GROUPS, device) == "with rollout.maxStaleness 0 no version comes ahead of its use"
    elastic = "workerGroups=[{name: train}, {name: rollout, elastic: {min: 1, max: 2}}]"
    assert said(elastic, ahead, "rollout.leaseRows=6", device) == (
        "pods of the elastic group rollout learn with each lease which version they need"
    )
    remote = "rollout.engine=HTTP"
    assert said(*TWO_GROUPS, ahead, remote, device) == "rollout.engine HTTP has its weights in a server"
    for staging in ("Auto", "Host"):
        assert problems(*TWO_GROUPS, f"weightSync.staging={staging}") == []
