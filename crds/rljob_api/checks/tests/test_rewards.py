"""Models of rewards in the job's own pods, and rewards at the steps of an answer."""

import pytest

from rljob_api.checks.tests.test_services import JUDGE
from rljob_api.memory.model_shape import parse_shape
from rljob_api.planning.advice import warnings_of
from rljob_api.planning.planner import plan
from rljob_api.tests.builders import PPO, TWO_GROUPS, dag, make_job, make_plan, problems
from rljob_api.vocabulary.problem import InvalidJobError

MODELS = "models=[{name: actor, path: m}, {name: taste, path: models/taste}]"
RULE = "{name: correct, run: 'my:correct', column: answer}"
TASTE = "{name: good, run: RewardModel, model: taste, weight: 0.5}"
GRADED = (MODELS, f"rewards=[{RULE}, {TASTE}]")
REMAX = "algorithm={name: ReMax}"


def of_model(fields: str) -> tuple[str, str]:
    """The job with these fields of its graded reward in place of those that it has."""
    return MODELS, f"rewards=[{RULE}, {{name: good, {fields}}}]"


def spread(estimator: str, run: str = "my:steps") -> tuple[str, str]:
    return f"algorithm={estimator}", f"rewards=[{{name: steps, run: '{run}', spread: Steps}}]"


def test_the_pipeline_of_the_algorithm_has_a_stage_for_each_model() -> None:
    made = make_plan(*GRADED)
    stage, reward = made.stage("reward_model_1"), made.stage("reward")
    assert (stage.run, stage.models, stage.engines) == ("RewardModel", ("taste",), ("taste",))
    assert stage.after == ("rollout",)
    assert stage.writes == ("taste_rewards",) and {"prompt_ids", "response_ids", "answer"} <= set(stage.reads)
    assert reward.after == ("rollout", "reward_model_1") and "taste_rewards" in reward.reads
    engine = made.engine("taste")
    assert engine.kind == "Train" and not engine.trainable and made.has_value_head(engine)
    assert made.is_reward_model(engine) and not made.is_reward_model(made.engine("train/actor"))
    # functions know nothing of the model, so that they begin with the first response as ever
    assert made.begun_in("reward") == "rollout"
    assert warnings_of(made) == warnings_of(make_plan())


def test_with_two_groups_the_model_lies_where_others_are_trained() -> None:
    made = make_plan(*GRADED, *TWO_GROUPS)
    assert made.stage("reward_model_1").group == "train" and made.stage("reward").group == "rollout"
    assert made.edge("reward_model_1->reward").transport == "Buffer"


def test_a_model_of_rewards_has_no_last_layer_and_no_optimizer() -> None:
    shape = parse_shape(
        {
            "model_type": "qwen3",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "vocab_size": 1000,
            "tie_word_embeddings": False,
        }
    )
    assert shape is not None
    shapes = {"m": shape, "models/taste": shape}
    alone = "models=[{name: actor, path: m}]"
    (more,), (less,) = (plan(make_job(*item), shapes=shapes).memory for item in (GRADED, (alone,)))
    # Float32 on one worker: everything but the 1000 x 64 numbers of the last layer, and no more of the optimizer
    assert more.phases[0].weights - less.phases[0].weights == 4 * (shape.parameters - 1000 * 64)
    assert more.phases[0].optimizer == less.phases[0].optimizer


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        (of_model("run: RewardModel"), "spec.rewards[1].run", "it names no model"),
        (of_model("run: 'my:good', model: taste"), "spec.rewards[1].model", "only run: RewardModel asks a model"),
        (of_model("run: RewardModel, model: tste"), "spec.rewards[1].model", "Did you mean taste?"),
        (of_model("run: RewardModel, model: taste, onError: Zero"), "spec.rewards[1].onError", "nobody is called"),
        (of_model("run: RewardModel, model: taste, timeoutSeconds: 9"), "spec.rewards[1].timeoutSeconds", "nobody"),
        (of_model("run: RewardModel, model: taste, spread: Steps"), "spec.rewards[1].spread", "one number"),
        (
            of_model("run: RewardModel, model: taste, options: {maxToken: 3}"),
            "spec.rewards[1].options.maxToken",
            "RewardModel has no such option, found 3. Did you mean maxTokens?",
        ),
        (
            of_model("run: RewardModel, model: taste, options: {maxTokens: 0}"),
            "spec.rewards[1].options.maxTokens",
            "greater than or equal to 1",
        ),
        (
            (MODELS, f"rewards=[{RULE}, {TASTE}, {TASTE.replace('good', 'again')}]"),
            "spec.rewards[2].model",
            "spec.rewards[1] is what this model says already",
        ),
        (
            (MODELS.replace("models/taste", "models/taste, initialise: Random"), GRADED[1]),
            "spec.rewards[1].model",
            "begins with random weights",
        ),
        ((*GRADED, REMAX), "spec.rewards[1].model", "between its rounds"),
        (
            (MODELS, f"rewards=[{TASTE}, {RULE}]", "data.validation=[{path: v.parquet}]"),
            "spec.rewards[0].model",
            "says who is right in validation",
        ),
    ],
)
def test_a_model_that_cannot_be_asked_is_refused(changes: tuple[str, ...], path: str, words: str) -> None:
    result = {problem.path: str(problem) for problem in problems(*changes)}
    assert words in result[path], result


def test_a_service_is_no_model_of_the_job() -> None:
    result = problems(*of_model("run: RewardModel, model: taste, service: judge"), f"services=[{JUDGE}]")
    assert [problem.path for problem in result] == ["spec.rewards[1].service"]


ROLLOUT = "name: rollout, run: Rollout"
REWARD = "name: reward, run: Reward, after: [{after}]"
REST = (
    "name: reference, run: LogProbs, models: [reference], after: [rollout]",
    "name: advantage, run: Advantage, after: [reward]",
    "name: update, run: UpdatePolicy, after: [advantage, reference]",
)


def of_dag(*between: str, after: str) -> list[str]:
    return [str(problem) for problem in problems(*GRADED, dag(ROLLOUT, *between, REWARD.format(after=after), *REST))]


def test_a_dag_of_ones_own_has_the_stage_too() -> None:
    grade = "name: grade, run: RewardModel, models: [taste], after: [rollout]"
    assert of_dag(grade, after="rollout, grade") == []
    missing = of_dag(after="rollout")
    assert any("run: RewardModel and models: [taste], and put it into after." in item for item in missing), missing
    (early,) = of_dag(grade, after="rollout")
    assert "reads column taste_rewards, but grade that writes it does not come before it" in early
    none = of_dag(grade.replace("models: [taste], ", ""), after="rollout, grade")
    assert any("RewardModel takes 1 model" in item and "models: [helpfulness]" in item for item in none), none


def test_a_model_nobody_asks_of_is_refused_and_so_is_one_that_others_use() -> None:
    grade = "name: grade, run: RewardModel, models: [reference], after: [rollout]"
    plain = [str(problem) for problem in problems(dag(ROLLOUT, grade, REWARD.format(after="rollout"), *REST))]
    assert any("no reward is what it says" in item for item in plain), plain
    used = "name: grade, run: RewardModel, models: [taste], after: [rollout]"
    scored = "name: scored, run: LogProbs, models: [taste], after: [rollout]"
    rest = (REST[1], "name: update, run: UpdatePolicy, after: [advantage, scored]")
    stages = dag(ROLLOUT, used, scored, REWARD.format(after="rollout, grade"), *rest)
    result = [str(problem) for problem in problems(*GRADED, stages)]
    assert any("stage scored uses this model too" in item for item in result), result


def test_arguments_of_its_chat_template_are_its_own() -> None:
    own = MODELS.replace("models/taste", "models/taste, chatTemplate: {style: plain}")
    assert problems(own, GRADED[1]) == []
    (unread,) = problems(own.replace("name: taste", "name: reference"))
    assert unread.path == "spec.models[1].chatTemplate"


def test_a_text_longer_than_the_model_reads_is_refused_where_its_config_is_at_hand() -> None:
    config = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 100, "max_position_embeddings": 32}
    shape = parse_shape({"model_type": "qwen3", **config})
    assert shape is not None
    # it does not read rows, which have up to 48 tokens: its texts are cut at maxTokens
    short = make_job(MODELS, f"rewards=[{RULE}, {TASTE.removesuffix('}')}, options: {{maxTokens: 32}}}}]")
    assert plan(short, shapes={"models/taste": shape}).stage("reward_model_1")
    with pytest.raises(InvalidJobError, match="reads 32 positions.*found 2048. Write 32 or less."):
        plan(make_job(*GRADED), shapes={"models/taste": shape})


@pytest.mark.parametrize(
    "algorithm",
    [
        "{name: PPO}",
        "{name: ReinforcePlusPlus}",
        "{name: PPO, advantage: {estimator: 'my:own', reads: [values]}}",
    ],
)
def test_rewards_are_spread_where_the_estimator_looks_at_tokens(algorithm: str) -> None:
    changes = spread(algorithm)
    assert problems(*changes) == []
    made = make_plan(*changes)
    assert made.stage("reward").writes == ("rewards", "step_rewards")
    assert "step_rewards" in made.stage("advantage").reads
    assert "step_rewards" not in make_plan(*PPO).stage("advantage").reads


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ("{name: GRPO, groupSize: 4}", "the estimator GRPO compares one number of each row"),
        ("{name: RLOO, groupSize: 4}", "the estimator RLOO compares"),
        ("{name: ReMax}", "rewards that stage sample has computed are not spread over steps yet"),
    ],
)
def test_rewards_that_nobody_would_see_at_their_steps_are_refused(algorithm: str, words: str) -> None:
    result = {problem.path: str(problem) for problem in problems(*spread(algorithm))}
    assert words in result["spec.rewards[0].spread"], result


def test_a_network_is_permitted_where_a_reward_is_confined() -> None:
    listed = "{name: a, run: 'my:a', network: ['api.example:443']}"
    assert problems(f"rewards=[{listed}, {{name: b, run: 'my:b', confinement: Preferred}}]") == []
    (only,) = problems(f"rewards=[{listed}]")
    assert only.path == "spec.rewards[0].network" and "without confinement a reward reaches every network" in str(only)


NETWORKS = {
    "rewards[0]": "rewards=[{{name: a, run: 'my:a', confinement: Required, network: {}}}]",
    "rollout.conversation": "rollout.conversation={{network: {}}}",
    "rollout.conversation.tools[0]": "rollout.conversation={{tools: [{{run: 'm:f', network: {}}}]}}",
}


@pytest.mark.parametrize("field", NETWORKS)
def test_rewards_and_conversations_list_servers_in_one_form(field: str) -> None:
    listed = ["x:1", "[2001:db8::1]:443", "api_2.example:80", "127.0.0.1:8080", "bücher.example:443"]
    assert problems(NETWORKS[field].format(listed)) == []
    refused = ["169.254.169.254:80", "[fe80::1]:80", "api.example:70000", "*.example:443", "me@example:80"]
    found = problems(NETWORKS[field].format(refused))
    assert [item.path for item in found] == [f"spec.{field}.network[{i}]" for i in range(len(refused))]
    assert all(entry in str(item) for entry, item in zip(refused, found, strict=True))


@pytest.mark.parametrize("entry", ["api.example", "https://api.example:443", "::1:80", "a b:1", "x:123456"])
def test_an_entry_of_a_network_is_a_host_and_a_port(entry: str) -> None:
    with pytest.raises(InvalidJobError, match=r"rewards\[0\].network"):
        make_job(f"rewards=[{{name: a, run: 'my:a', confinement: Required, network: ['{entry}']}}]")


def test_a_model_of_rewards_is_not_confined() -> None:
    (only,) = problems(*of_model("run: RewardModel, model: taste, confinement: Required"))
    assert only.path == "spec.rewards[1].confinement"
