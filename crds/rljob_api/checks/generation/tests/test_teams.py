"""What is refused of the agents of conversations, and what a team's pipeline is."""

import pytest

from rljob_api.tests.builders import make_plan, problems

AGENTS = "agents: [{name: solver, policy: actor}, {name: checker, policy: other}], rounds: 2"
MODELS = "models=[{name: actor, path: models/tiny}, {name: other, path: models/tiny}]"
ONE = "agents: [{name: solver}, {name: checker}]"
BAD = {
    "agents: [{name: solver}, {name: solver}], rounds: 1": "agents[1].name",
    "agents: [{name: task}], rounds: 1": "agents[0].name",
    "agents: [{name: solver, hears: [task, cheker]}, {name: checker}], rounds: 1": "agents[0].hears[1]",
    "agents: [{name: solver, hears: [solver]}], rounds: 1": "agents[0].hears[0]",
    "agents: [{name: solver}, {name: checker, policy: reader}], rounds: 1": "agents[1].policy",
    "agents: [{name: solver, critic: critic}], rounds: 1": "agents[0].critic",
    f"{ONE}, rounds: 1, order: [solver, judge]": "order[1]",
    f"{ONE}, rounds: 1, order: [solver]": "order",
    ONE: "order",  # without end
    f"{ONE}, rounds: 5": "maxTurns",  # 10 turns, and 8 there are
    "agents: [{name: solver, hears: [task]}], rounds: 2": "order",  # nothing new to say in the second round
    "agents: [{name: solver, hears: [checker]}, {name: checker}], rounds: 1": "order",
    "rounds: 2": "rounds",
    "reward: PerAgent": "reward",
    "run: 'rljob_worker.conversations:team'": "run",
    f"{ONE}, rounds: 1, program: {{command: [play]}}": "program",
    f"{ONE}, rounds: 1, agentPool: {{command: [play]}}": "agentPool",
    f"{ONE}, rounds: 1, pictures: true": "pictures",
    f"{ONE}, rounds: 1, reward: PerAgnet": "reward",
    "agents: [{name: solver, stopWord: ''}], rounds: 1": "agents[0].stopWord",
    "agents: [{name: solver, stopWord: DONE}, {name: checker}], rounds: 0": "rounds",
}


@pytest.mark.parametrize("conversation", BAD)
def test_a_team_that_cannot_be_played_is_refused_at_its_field(conversation):
    paths = [problem.path for problem in problems(f"rollout.conversation={{{conversation}}}")]
    assert paths == [f"spec.rollout.conversation.{BAD[conversation]}"]


def test_pictures_of_the_data_do_not_go_with_a_team():
    result = problems(MODELS, f"rollout.conversation={{{AGENTS}}}", "data.imagesColumn=pictures")
    assert {problem.path for problem in result} == {"spec.data.imagesColumn"}, result


def test_updates_of_a_team_compare_whole_distributions_each_with_the_reference_of_its_policy():
    plan = make_plan(MODELS, f"rollout.conversation={{{AGENTS}}}", "algorithm.kl={coefficient: 0.1, estimator: Full}")
    assert {policy: plan.stage(f"update_{policy}").engines for policy in ("actor", "other")} == {
        policy: (f"train/{policy}", f"reference_{policy}") for policy in ("actor", "other")
    }
    assert "reference" not in [stage.name for stage in plan.stages]


def test_rewards_of_agents_do_not_go_with_rounds_of_sampling():
    result = problems("rollout.conversation={agents: [{name: a}, {name: b}], rounds: 1, reward: PerAgent}",
                      "algorithm={name: DAPO}")  # fmt: skip
    assert [problem.path for problem in result] == ["spec.rollout.conversation.reward"]


def dag_without(policy):
    stages = ["name: rollout, run: Rollout, models: [actor, other]", "name: reward, run: Reward, after: [rollout]"]
    stages += ["name: advantage, run: Advantage, after: [reward]"]
    updates = [f"name: update_{name}, run: UpdatePolicy, models: [{name}], after: [advantage]" for name in policy]
    return "dag={stages: [" + ", ".join("{" + stage + "}" for stage in [*stages, *updates]) + "]}"


def test_every_policy_plays_an_agent_and_every_agent_is_played():
    team = "rollout.conversation={agents: [{name: a, policy: actor}, {name: b, policy: actor}], rounds: 1}"
    result = problems(MODELS, "algorithm.kl.coefficient=0", team, dag_without(["actor", "other"]))
    assert "policy other plays no agent, so it has no rows to learn from" in [problem.message for problem in result]
    team = f"rollout.conversation={{{AGENTS}}}"
    result = problems(MODELS, "algorithm.kl.coefficient=0", team, dag_without(["actor"]))
    assert "spec.rollout.conversation.agents[1].policy" in [problem.path for problem in result]


def apart(*rollouts):
    """A team whose policies are trained each in a worker group of its own, and generated as `rollouts` say."""
    groups = ", ".join(f"{{name: {name}, accelerator: {{profile: cpu}}}}" for name in ("rollout", "one", "two"))
    stages = [f"name: {name}, run: Rollout, models: [{models}], group: {group}" for name, models, group in rollouts]
    names = ", ".join(name for name, *_ in rollouts)
    stages.append(f"name: reward, run: Reward, after: [{names}], group: rollout")
    stages.append("name: advantage, run: Advantage, after: [reward], group: one")
    for policy, group in (("actor", "one"), ("other", "two")):
        update = f"name: update_{policy}, run: UpdatePolicy, models: [{policy}]"
        stages.append(f"{update}, after: [advantage], group: {group}")
    dag = "dag={stages: [" + ", ".join("{" + stage + "}" for stage in stages) + "]}"
    team = f"rollout.conversation={{{AGENTS}}}"
    return (MODELS, "algorithm.kl.coefficient=0", "dataBuffer.memory=1Gi", f"workerGroups=[{groups}]", team, dag)


def test_each_policy_may_be_trained_in_a_worker_group_of_its_own():
    plan = make_plan(*apart(("rollout", "actor, other", "rollout")), "rollout.maxStaleness=1")
    homes = {engine.name: engine.group for engine in plan.engines}
    assert homes == {"rollout/actor": "rollout", "rollout/other": "rollout", "train/actor": "one", "train/other": "two"}
    assert {edge.name: (edge.source, edge.target) for edge in plan.weights} == {
        f"weights/{policy}": (f"train/{policy}", f"rollout/{policy}") for policy in ("actor", "other")
    }


def test_a_team_is_not_played_in_several_worker_groups():
    result = problems(*apart(("rollout", "actor", "rollout"), ("generate", "other", "two")))
    refused = {problem.path: problem.message for problem in result}
    message = "stage rollout plays all agents of a trajectory, and other plays one"
    assert refused["spec.dag.stages[0].models"] == message, refused


def test_policies_of_a_team_may_have_adapters_on_one_base_and_draw_prompts_again():
    models = MODELS.replace("}", ", adapter: {rank: 4}}")
    plan = make_plan(models, f"rollout.conversation={{{AGENTS}}}", "algorithm={name: DAPO, kl: {coefficient: 0.1}}")
    assert plan.stage("sample").models == ("actor", "other")
    engines = {engine.name: engine for engine in plan.engines}
    assert engines["train/actor"].adapter == engines["train/other"].adapter is not None
    # both begin as one model: it scores for both
    assert {engines[f"reference_{policy}"].base_of for policy in ("actor", "other")} == {"train/actor"}


def test_the_pipeline_of_a_team_of_policies():
    team = (MODELS, f"rollout.conversation={{{AGENTS}, maxRows: 2}}", "algorithm={name: MARFT}")
    plan = make_plan(*team)
    models = {stage.name: stage.models for stage in plan.stages}
    assert models["rollout"] == ("actor", "other") and models["values"] == ("critic_actor", "critic_other")
    assert {"update_actor", "update_other", "update_critic_actor", "update_critic_other"} <= models.keys()
    assert {edge.name for edge in plan.weights} == {"weights/actor", "weights/other"}
    assert (plan.rows_per_trajectory, plan.spec.rows_per_agent, plan.spec.num_agents) == (4, 2, 2)
    labels = {name: plan.label_of_stage(name) for name in ("rollout", "values", "update_other", "update_critic_actor")}
    assert labels == {"rollout": None, "values": None, "update_other": "other", "update_critic_actor": "actor"}
    assert plan.spec.source_of("critic_other").path == "models/tiny"
    shared = "agents: [{name: a, policy: actor, critic: judge}, {name: b, policy: other, critic: judge}], rounds: 1"
    judge = MODELS.replace("]", ", {name: judge, path: models/judge}]")
    plan = make_plan(judge, f"rollout.conversation={{{shared}}}", "algorithm={name: MARFT}")
    assert plan.stage("values").models == ("judge",) and plan.label_of_stage("update_critic") is None


REFERENCES = {"ref_actor": "reference_actor", "ref_other": "reference_other"}


def scored_apart(*stages, advantage=""):
    """A team whose policies are scored and trained each in a worker group of its own. stages: that score."""
    *others, dag = apart(("rollout", "actor, other", "rollout"))
    scoring = [
        f"{{name: {name}, run: LogProbs, models: [{REFERENCES[name]}], after: [rollout], group: {group}}}"
        for name, group in stages
    ]
    names = [name for name, _ in stages]
    for policy, name in (("actor", names[0]), ("other", names[-1])):
        update = f"name: update_{policy}, run: UpdatePolicy, models: [{policy}], after: [advantage"
        dag = dag.replace(update, f"{update}, {name}")
    dag = dag.replace("after: [reward]", f"after: [reward{advantage}]").replace("stages: [", f"stages: [{scoring[0]}, ")
    return (*others, "".join([dag.removesuffix("]}"), *(f", {stage}" for stage in scoring[1:]), "]}"]))


def test_each_policy_may_be_scored_in_a_worker_group_of_its_own():
    plan = make_plan(*scored_apart(("ref_actor", "one"), ("ref_other", "two")), "algorithm.kl.coefficient=0.1")
    homes = {engine.name: engine.group for engine in plan.engines}
    assert (homes["reference_actor"], homes["reference_other"]) == ("one", "two")
    assert {(edge.producer, edge.consumer) for edge in plan.edges if "ref_log_probs" in edge.columns} == {
        ("ref_actor", "update_actor"),
        ("ref_other", "update_other"),
    }


def test_what_is_scored_of_one_agent_is_not_read_of_another():
    rewarded = scored_apart(("ref_actor", "one"), ("ref_other", "two"), advantage=", ref_actor, ref_other")
    result = problems(*rewarded, "algorithm.kl={coefficient: 0.1, placement: Reward}")
    message = "advantage reads column ref_log_probs of all its rows, and ref_actor has none for agent checker"
    assert message in [problem.message for problem in result], result
    (problem,) = problems(*scored_apart(("ref_actor", "one")), "algorithm.kl.coefficient=0.1")
    assert problem.message == "update_other reads column ref_log_probs, which no stage writes"
    assert "models: [reference_other]" in problem.fix
