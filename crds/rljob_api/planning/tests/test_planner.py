"""Tests of the planner: engines, edges and stages of a plan."""

import pytest

from rljob_api.loading.load import parse_job
from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.planner import plan
from rljob_api.tests.builders import (
    ADVANTAGE,
    FULL_EXAMPLE,
    GRPO,
    PPO,
    REFERENCE,
    REWARD,
    ROLLOUT,
    TWO_GROUPS,
    UPDATE,
    dag,
    make_job,
    make_plan,
)
from rljob_api.v1alpha1 import RLJob
from rljob_api.vocabulary.problem import InvalidJobError


def edges(plan):
    return {edge.name: (set(edge.columns), edge.transport) for edge in plan.edges}


def test_the_colocated_grpo_pipeline():
    plan = make_plan()
    assert plan.group("train").schedule == ("rollout", "reference", "reward", "advantage", "update")
    assert [engine.name for engine in plan.engines] == ["rollout/actor", "reference", "train/actor"]
    assert [engine.trainable for engine in plan.engines] == [False, False, True]
    assert plan.lead_group == "train"
    assert edges(plan) == {
        "rollout->reward": ({"prompt_ids", "response_ids", "source", "answer"}, "Local"),
        "rollout->reference": ({"prompt_ids", "response_ids"}, "Local"),
        "rollout->advantage": ({"response_mask"}, "Local"),
        "reward->advantage": ({"rewards"}, "Local"),
        "rollout->update": ({"prompt_ids", "response_ids", "response_mask", "rollout_log_probs"}, "Buffer"),
        "reference->update": ({"ref_log_probs"}, "Buffer"),
        "advantage->update": ({"advantages"}, "Buffer"),
    }


def test_rows_of_dynamic_sampling_cross_where_another_worker_may_have_them():
    dapo = "algorithm={name: DAPO, kl: {coefficient: 0.001}}"
    two_workers = "workerGroups=[{name: train, accelerator: {profile: cpu, count: 2}}]"
    alone, several = make_plan(dapo), make_plan(dapo, two_workers)
    assert several.group("train").schedule == ("sample", "reference", "advantage", "update")
    assert edges(alone)["sample->advantage"] == ({"rewards", "response_mask"}, "Local")
    assert edges(several)["sample->advantage"] == ({"rewards", "response_mask"}, "Buffer")
    assert edges(several)["sample->reference"] == ({"prompt_ids", "response_ids"}, "Buffer")
    assert edges(several)["reference->update"] == ({"ref_log_probs"}, "Buffer")


LOOK = "name: look, run: 'm:f', after: [rollout], reads: [response_ids], writes: [rewritten]"


@pytest.mark.parametrize(
    ("overrides", "begun_in"),
    [
        ((), "rollout"),
        (("workerGroups=[{name: train, accelerator: {profile: cpu, count: 2}}]",), "rollout"),
        (TWO_GROUPS, "rollout"),
        # rewards are computed in another group than responses
        ((*TWO_GROUPS, dag(ROLLOUT, f"{REWARD}, group: train", REFERENCE, ADVANTAGE, UPDATE)), None),
        # a stage comes in between, and has the responses in hand
        ((dag(ROLLOUT, LOOK, REWARD.replace("[rollout]", "[rollout, look]"), REFERENCE, ADVANTAGE, UPDATE),), None),
        # rewards are of what a stage made of the responses
        (
            (
                dag(
                    ROLLOUT,
                    LOOK,
                    f"{REWARD.replace('[rollout]', '[look]')}, rename: {{response_ids: rewritten}}",
                    REFERENCE,
                    ADVANTAGE,
                    UPDATE,
                ),
            ),
            None,
        ),
        # a stage beside it does not matter
        ((dag(ROLLOUT, LOOK, REWARD, REFERENCE, ADVANTAGE, UPDATE),), "rollout"),
    ],
)
def test_rewards_are_begun_row_by_row_where_nobody_has_a_hand_in_what_they_see(overrides, begun_in):
    plan = make_plan(*overrides)
    assert plan.begun_in("reward") == begun_in
    assert plan.begins_rewards("rollout") == (begun_in is not None)


def test_a_sample_stage_begins_its_own_rewards():
    assert make_plan("algorithm={name: DAPO}").begins_rewards("sample")


def test_without_kl_there_is_no_reference_model():
    plan = make_plan("algorithm.kl.coefficient=0")
    assert plan.group("train").schedule == ("rollout", "reward", "advantage", "update")
    assert {engine.model for engine in plan.engines} == {"actor"}


@pytest.mark.parametrize(
    ("override", "has_old_log_probs"),
    [
        ("seed=0", False),
        ("training.miniBatchRows=32", False),  # the whole batch of 8 x 4 rows
        ("training.miniBatchRows=16", True),
        ("algorithm.updateEpochs=2", True),
        ("algorithm.kl.placement=Reward", True),
    ],
)
def test_old_log_probs_are_kept_when_something_needs_them(override, has_old_log_probs):
    plan = make_plan(override)
    assert ("old_log_probs" in plan.group("train").schedule) == has_old_log_probs
    assert ("old_log_probs" in plan.stage("update").reads) == has_old_log_probs


def test_kl_in_the_reward_moves_reference_log_probs_to_the_advantage():
    plan = make_plan("algorithm.kl.placement=Reward")
    assert {"ref_log_probs", "old_log_probs"} <= set(plan.stage("advantage").reads)
    assert "ref_log_probs" not in plan.stage("update").reads
    assert plan.stage("reference").writes == ("ref_log_probs",)
    assert plan.stage("old_log_probs").writes == ("old_log_probs",)


def test_rewards_that_are_computed_elsewhere_have_the_time_of_other_stages():
    """Processes of their own score rows from the moment that these end; the worker asks for the scores last."""
    schedule = make_plan(*PPO).group("train").schedule
    assert schedule.index("reward") > max(map(schedule.index, ("reference", "values")))


def test_ppo_has_a_critic_that_starts_from_actor():
    plan = make_plan(*PPO)
    schedule = ("rollout", "reference", "values", "reward", "advantage", "update", "update_critic")
    assert plan.group("train").schedule == schedule
    critic = plan.engine("train/critic")
    assert (critic.path, critic.trainable) == ("models/tiny", True)
    assert plan.stage("advantage").writes == ("advantages", "returns")
    assert plan.stage("update_critic").engines == plan.stage("values").engines == ("train/critic",)


def test_masking_truncated_rows_goes_through_a_loss_mask():
    plan = make_plan("algorithm.maskTruncated=true")
    assert "truncated" in plan.stage("advantage").reads
    assert "loss_mask" in plan.stage("advantage").writes
    assert "loss_mask" in plan.stage("update").reads


@pytest.mark.parametrize("parallelism", ["replicate", "expert"])
def test_rows_stay_where_they_are_however_weights_lie(parallelism):
    pair = "workerGroups=[{name: train, accelerator: {count: 2}}]"
    made = make_plan(pair, f"training.parallelism.{parallelism}=2")
    assert made.stage("reference").mesh != made.stage("rollout").mesh
    assert edges(made) == edges(make_plan(pair))
    assert edges(made)["rollout->reference"][1] == "Local"


def test_two_groups_run_rollout_and_reward_apart_from_the_rest():
    plan = make_plan(*TWO_GROUPS)
    assert plan.group("rollout").schedule == ("rollout", "reward")
    assert plan.group("train").schedule == ("reference", "advantage", "update")
    assert plan.lead_group == "train"
    assert plan.engine("rollout/actor").mesh == Mesh(dp=4)
    assert plan.engine("train/actor").mesh == Mesh(dp=2)
    assert edges(plan)["rollout->reward"][1] == "Local"
    assert edges(plan)["reward->advantage"][1] == "Buffer"
    (weights,) = plan.weights
    assert (weights.name, weights.source, weights.target) == ("weights/actor", "train/actor", "rollout/actor")
    assert weights.transport == "DataBuffer"
    assert (plan.worker_offset("train"), plan.worker_offset("rollout"), plan.num_workers) == (0, 2, 6)


def test_weights_stay_in_the_process_when_colocated():
    assert [edge.transport for edge in make_plan().weights] == ["InProcess"]


def test_weights_go_between_groups_as_the_job_says():
    for asked, result in [("Auto", "DataBuffer"), ("DataBuffer", "DataBuffer"), ("Collective", "Collective")]:
        plan = make_plan(*TWO_GROUPS, f"weightSync.transport={asked}")
        assert [edge.transport for edge in plan.weights] == [result]
    assert [edge.transport for edge in make_plan("weightSync.transport=InProcess").weights] == ["InProcess"]


def test_a_stage_without_group_follows_its_model_then_its_predecessor():
    plan = make_plan(
        "workerGroups=[{name: a}, {name: b}]",
        dag(
            ROLLOUT + ", group: a",
            "name: reward, run: Reward, after: [rollout]",
            "name: reference, run: LogProbs, models: [reference], after: [rollout], group: b",
            ADVANTAGE + ", group: b",
            "name: old, run: LogProbs, models: [actor], after: [rollout]",
            "name: mine, run: 'm:f', after: [advantage], reads: [advantages]",
            "name: update, run: UpdatePolicy, after: [advantage, reference, old], group: b",
        ),
    )
    assert plan.group("a").schedule == ("rollout", "reward")
    assert plan.group("b").schedule == ("reference", "old", "advantage", "mine", "update")


def test_what_a_balanced_stage_gives_is_not_local_either():
    plan = make_plan(
        dag(
            ROLLOUT,
            "name: reward, run: Reward, after: [rollout]",
            "name: reference, run: LogProbs, models: [reference], after: [rollout], balance: Tokens",
            ADVANTAGE,
            "name: update, run: UpdatePolicy, after: [advantage, reference]",
        )
    )
    assert edges(plan)["rollout->reference"][1] == "Buffer"
    assert edges(plan)["reference->update"][1] == "Buffer"
    assert edges(plan)["advantage->update"][1] == "Local"


def test_an_after_without_columns_is_an_edge_that_orders():
    plan = make_plan(
        dag(
            ROLLOUT,
            "name: reward, run: Reward, after: [rollout]",
            "name: reference, run: LogProbs, models: [reference], after: [rollout, reward]",
            ADVANTAGE,
            "name: update, run: UpdatePolicy, after: [advantage, reference]",
        )
    )
    assert edges(plan)["reward->reference"] == (set(), "Local")


def test_data_columns_that_a_rollout_lists_are_carried():
    plan = make_plan(
        dag(
            ROLLOUT + ", writes: [level]",
            "name: reward, run: Reward, after: [rollout]",
            "name: mine, run: 'm:f', after: [rollout], reads: [level], writes: [bonus]",
            "name: reference, run: LogProbs, models: [reference], after: [rollout]",
            ADVANTAGE,
            "name: update, run: UpdatePolicy, after: [advantage, reference]",
        )
    )
    assert plan.stage("rollout").writes[-2:] == ("answer", "level")
    assert edges(plan)["rollout->mine"][0] == {"level"}


def test_the_full_example():
    plan = _full()
    assert plan.group("train").num_workers == 32
    assert plan.group("train").backend == "nccl"
    assert plan.stage("advantage").reads == ("total_rewards", "response_mask")
    assert plan.stage("advantage").rename == {"rewards": "total_rewards"}
    assert plan.stage("advantage").needs_groups
    assert plan.stage("style").mesh == Mesh(dp=32)
    schedule = ("rollout", "grade", "reference", "style", "reward", "total", "advantage", "update")
    assert plan.group("train").schedule == schedule


def test_an_invalid_job_is_not_planned():
    job = make_job()
    stop = job.spec.rollout.model_copy(update={"top_p": 0.5})
    spec = job.spec.model_copy(update={"rollout": stop})
    with pytest.raises(InvalidJobError) as caught:
        plan(RLJob(api_version=job.api_version, kind=job.kind, metadata=job.metadata, spec=spec))
    assert [problem.path for problem in caught.value.problems] == ["spec.rollout.topP"]
    assert caught.value.exit_code == 64


def test_unknown_names_in_a_plan_are_key_errors():
    plan = make_plan()
    for lookup in (plan.group, plan.stage, plan.engine, plan.edge, plan.worker_offset):
        with pytest.raises(KeyError):
            lookup("nobody")


def test_mesh_puts_data_parallel_slowest():
    mesh = Mesh(dp=2, tp=2, cp=2)
    assert mesh.size == 8
    assert [mesh.dp_rank(rank) for rank in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [rank for rank in range(8) if mesh.is_row_leader(rank)] == [0, 4]


def test_a_plan_is_small_and_does_not_grow_with_hosts():
    hosts = "[{{name: train, replicas: {}, accelerator: {{profile: nvidia-h100, count: 8}}}}]"
    sizes = [
        len(
            make_plan(
                "data.batchSize=8192", "dataBuffer.memory=64Gi", f"workerGroups={hosts.format(n)}"
            ).canonical_json()
        )
        for n in (1, 1024)
    ]
    assert sizes[1] - sizes[0] < 32  # digits only
    assert sizes[1] < 2**20


def _full():
    return plan(parse_job(FULL_EXAMPLE))


def test_the_update_has_the_reference_beside_it_where_it_compares_whole_distributions():
    plan = make_plan("algorithm={name: GRPO, kl: {estimator: Full}}", *TWO_GROUPS)
    update = plan.stage("update")
    assert update.models == ("actor",)
    assert update.engines == ("train/actor", "reference")
    (reference,) = [engine for engine in plan.engines if engine.name == "reference"]
    assert (reference.group, reference.mesh, reference.trainable) == (update.group, update.mesh, False)
    assert "reference" not in [stage.name for stage in plan.stages]


@pytest.mark.parametrize("staleness", [0, 2])
def test_a_verdict_governs_the_step_after_those_that_generating_weights_may_be_behind(staleness):
    spec = make_plan().spec
    rollout = spec.rollout.model_copy(update={"max_staleness": staleness})
    asynchronous = make_plan().model_copy(update={"spec": spec.model_copy(update={"rollout": rollout})})
    assert (asynchronous.staleness, asynchronous.verdict_delay) == (staleness, staleness + 1)


ADAPTED = "models=[{name: actor, path: models/tiny, adapter: {rank: 8, targets: [q_proj]}}]"


def test_the_reference_of_an_adapted_actor_is_the_actor_with_its_adapter_off():
    plan = make_plan(ADAPTED)
    assert plan.engine("train/actor").adapter.rank == 8
    assert plan.engine("rollout/actor").adapter is None  # it gets merged weights
    assert (plan.engine("reference").base_of, plan.engine("reference").adapter) == ("train/actor", None)
    assert plan.engine("rollout/actor").base_of is None
    assert make_plan().engine("reference").base_of is None


def test_a_reference_of_other_weights_or_in_another_group_is_an_engine_of_its_own():
    other = "models=[{name: actor, path: models/tiny, adapter: {rank: 8}}, {name: reference, path: models/other}]"
    assert make_plan(other).engine("reference").base_of is None
    random = other.replace("models/other", "models/tiny, initialise: Random")
    assert make_plan(random).engine("reference").base_of is None
    same = other.replace("models/other", "models/tiny")
    assert make_plan(same).engine("reference").base_of == "train/actor"
    apart = dag(*(f"{stage}, group: rollout" if stage == REFERENCE else stage for stage in GRPO))
    assert make_plan(same, apart, *TWO_GROUPS).engine("reference").base_of is None


def test_a_critic_has_an_adapter_of_its_own_and_one_that_nobody_trains_a_head_of_its_own():
    plan = make_plan(ADAPTED, *PPO)
    assert plan.engine("train/critic").adapter == plan.engine("train/actor").adapter
    values = "name: values, run: Values, models: [critic], after: [rollout]"
    advantage = ADVANTAGE.replace("[reward]", "[reward, values]")
    frozen = make_plan(ADAPTED, *PPO, dag(ROLLOUT, REWARD, values, REFERENCE, advantage, UPDATE))
    assert frozen.engine("critic").base_of is None
    assert frozen.engine("reference").base_of == "train/actor"


def leased_stages(plan):
    return [stage.name for stage in plan.stages if plan.is_leased(stage)]


def scattering_stages(plan):
    return [stage.name for stage in plan.stages if stage.scatters_rows]


TWO_WORKERS = "workerGroups=[{name: train, accelerator: {profile: cpu, count: 2}}]"


def test_workers_take_leases_where_a_group_generates_and_trains_nothing():
    assert leased_stages(make_plan("algorithm={name: DAPO}", *TWO_GROUPS)) == ["sample"]
    assert leased_stages(make_plan(*TWO_GROUPS)) == ["rollout"]
    for colocated in (make_plan("algorithm={name: DAPO}", TWO_WORKERS), make_plan(TWO_WORKERS)):
        assert leased_stages(colocated) == []
    assert scattering_stages(make_plan(TWO_WORKERS)) == []
    # a group that generates and trains the critic is dealt by rank, too
    critic = dag(
        ROLLOUT,
        REWARD,
        "name: values, run: Values, models: [critic], after: [rollout], group: rollout",
        REFERENCE,
        ADVANTAGE.replace("[reward]", "[reward, values]"),
        UPDATE,
        "name: update_critic, run: UpdateCritic, after: [advantage], group: rollout",
    )
    assert leased_stages(make_plan(*TWO_GROUPS, *PPO, critic)) == []


def test_a_rank_alone_takes_leases_of_a_batch_where_the_job_cuts_it():
    alone = "workerGroups=[{name: train}, {name: rollout}]"
    assert leased_stages(make_plan(alone)) == scattering_stages(make_plan(alone)) == []
    assert leased_stages(make_plan(alone, "rollout.leaseRows=8")) == ["rollout"]
    assert leased_stages(make_plan(alone, "algorithm={name: DAPO}")) == ["sample"]


def test_groups_are_complete_where_they_were_drawn_and_have_no_number_before_the_step_has_its_batch():
    partial = "rollout.partial={tokensPerRound: 8, maxCarries: 3}"
    assert scattering_stages(make_plan(TWO_WORKERS, partial)) == ["rollout", "reward"]
    assert leased_stages(make_plan(TWO_WORKERS, partial)) == []
    apart = make_plan(*TWO_GROUPS, partial)
    assert leased_stages(apart) == ["rollout"] and apart.begun_in("reward") is None
    assert "token_versions" in apart.stage("reward").reads


def test_rewards_stay_with_the_rows_that_leases_made():
    plan = make_plan(*TWO_GROUPS)
    assert scattering_stages(plan) == ["rollout", "reward"]
    assert plan.edge("rollout->reward").transport == "Local" and plan.begun_in("reward") == "rollout"
    assert plan.edge("reward->advantage").transport == "Buffer"


PAIRS = "workerGroups=[{name: train}, {name: rollout, replicas: 2, accelerator: {profile: cpu, count: 2}}]"


@pytest.mark.parametrize(
    ("overrides", "in_place"),
    [
        # ranks that generate together, and rewards a worker's own
        (("rollout={engine: VLLM, parallelism: {tensor: 2}}", PAIRS), False),
        # what the model says of a row comes to where its number says
        ((dag(ROLLOUT, LOOK, REWARD.replace("[rollout]", "[rollout, look]"), REFERENCE, ADVANTAGE, UPDATE),), False),
        ((dag(ROLLOUT, f"{REWARD}, group: train", REFERENCE, ADVANTAGE, UPDATE),), False),
        # a stage beside it does not matter
        ((dag(ROLLOUT, f"{LOOK}, group: rollout", REWARD, REFERENCE, ADVANTAGE, UPDATE),), True),
    ],
)
def test_rewards_of_several_inputs_or_on_other_workers_go_by_number(overrides, in_place):
    plan = make_plan(*TWO_GROUPS, *overrides)
    assert leased_stages(plan) == ["rollout"] and plan.stage("reward").scatters_rows == in_place
    assert (plan.edge("rollout->reward").transport == "Local") == in_place
    if "look" in [stage.name for stage in plan.stages]:
        # a function of the user may work on rows of several ranks
        assert plan.edge("rollout->look").transport == "Buffer" and not plan.stage("look").scatters_rows
