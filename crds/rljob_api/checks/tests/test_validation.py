"""Tests of the validation of whole jobs: valid ones, and each problem with its message."""

import pytest

from rljob_api.checks.validation import problems_of
from rljob_api.tests.builders import (
    ADVANTAGE,
    FULL_EXAMPLE,
    GRPO,
    PPO,
    REFERENCE,
    REWARD,
    ROLLOUT,
    SMALL,
    TWO_GROUPS,
    UPDATE,
    dag,
    make_job,
    problems,
)

LONE_UPDATE = UPDATE.replace(", reference]", "]")
OLD = "name: old, run: LogProbs, models: [actor], after: [rollout], group: rollout"
KL_OFF = "algorithm.kl.coefficient=0"


def replaced(old, new):
    """The GRPO pipeline with one stage replaced."""
    return dag(*(new if stage == old else stage for stage in GRPO))


def test_jobs_without_problems():
    assert problems() == []
    assert problems(*PPO) == []
    assert problems(*TWO_GROUPS) == []
    assert problems(*PPO, *TWO_GROUPS) == []
    assert problems(dag(*GRPO)) == []
    assert problems("training.miniBatchRows=32") == []  # all of 8 prompts in groups of 4
    assert problems("algorithm.loss.dualClip=1.5") == []
    assert problems(replaced(ROLLOUT, ROLLOUT + ", writes: [answer]")) == []
    assert problems(KL_OFF, dag(ROLLOUT, REWARD, ADVANTAGE, LONE_UPDATE)) == []
    named = [f"{stage}, models: [student]" if stage in (ROLLOUT, UPDATE) else stage for stage in GRPO]
    assert problems("models.0.name=student", dag(*named)) == []  # the reference is a copy of it


@pytest.mark.parametrize(
    ("overrides", "path", "words"),
    [
        # three workers are no whole number of pairs
        (["training.parallelism.tensor=2", "workerGroups.0.replicas=3"], "spec.workerGroups[0]", "a multiple of 2"),
        # what generates stays in one pod, and six pods of one worker have no pairs
        (
            ["rollout.engine=VLLM", "rollout.parallelism.tensor=2", "workerGroups.1.replicas=6"],
            "spec.workerGroups[1].accelerator.count",
            "a multiple of 2",
        ),
        # three pairs
        (
            ["training.parallelism={tensor: 2, replicate: 2}", "workerGroups.0.replicas=6"],
            "spec.training.parallelism.replicate",
            "the 3 copies of the model on the 6 workers of group train do not divide into so many replicas",
        ),
        # a replica has two workers
        (
            ["training.parallelism={expert: 3, replicate: 3}", "workerGroups.0.replicas=6"],
            "spec.training.parallelism.expert",
            "the 2 workers of a replica of group train cannot share experts",
        ),
        # six prompts go onto two pairs, but not onto the four workers of a stage that has no model
        (
            ["training.parallelism.tensor=2", "workerGroups.0.replicas=4"],
            "spec.data.batchSize",
            "the 4 workers of group train (training) cannot share 6 prompts",
        ),
    ],
)
def test_workers_that_share_a_copy_of_the_model(overrides, path, words):
    result = problems("workerGroups=[{name: train}, {name: rollout}]", "data.batchSize=6", *overrides)
    refused = [problem for problem in result if "not built yet" not in problem.message]
    assert [problem.path for problem in refused] == [path]
    assert words in str(refused[0])


@pytest.mark.parametrize("axis", ["replicate", "expert"])
def test_what_copies_cannot_share_is_reported_of_workers_that_also_generate(axis):
    result = problems("workerGroups=[{name: a, replicas: 2}]", f"training.parallelism.{axis}=3")
    assert [problem.path for problem in result] == [f"spec.training.parallelism.{axis}"]
    assert result[0].fix == "Write a divisor of 2."


def test_overlong_responses_are_reported_by_one_length_for_all():
    overlong = "algorithm.overlong={bufferTokens: 8}"
    # 16 tokens of the longest prompt and 32 of the longest response
    assert problems(overlong, "rollout.maxSequenceTokens=48") == []
    (problem,) = problems(overlong, "rollout.maxSequenceTokens=47")
    assert problem.path == "spec.algorithm.overlong" and "cut off before" in problem.message


def test_the_profiles_there_are_decide_and_else_the_built_in_ones():
    assert problems_of(make_job()) == []
    (problem,) = problems_of(make_job(), {})
    assert problem.path == "spec.workerGroups[0].accelerator.profile"


def test_nothing_is_wrong_with_the_full_example():
    assert problems(text=FULL_EXAMPLE) == []


@pytest.mark.parametrize(
    ("override", "path", "words"),
    [
        # not built yet
        (
            "models=[{name: actor, path: models/tiny, adapter: {rank: 8, dropout: 0.1}}]",
            "spec.models[0].adapter.dropout",
            "not built yet",
        ),
        ("training={engine: Megatron, compile: true}", "spec.training.engine", "not built yet"),
        ("rollout.maxStaleness=1", "spec.rollout.maxStaleness", "generate and train"),
        ("rollout.maxStaleness=17", "spec.rollout.maxStaleness", "at most 16"),
        ("dataBuffer.spill=/tmp", "spec.dataBuffer.spill", "mapping of fields"),
        ("dataBuffer.spill={limit: 1Gi, directory: scratch}", "spec.dataBuffer.spill.directory", "^/"),
        ("dataBuffer.spill={directory: /scratch}", "spec.dataBuffer.spill.limit", "required"),
        ("monitoring.trackers=[TensorBoard, Wandb]", "spec.monitoring.trackers[1]", "WandB"),
        ("models.0.path='s3://me:secret@bucket/model'", "spec.models[0].path", '"s3://bucket/model"'),
        ("models.0.path=https://host/model", "spec.models[0].path", "https is not an object store"),
        ("checkpoint.initFrom='ftp://host/run'", "spec.checkpoint.initFrom", "Known: s3://, gs://, az://."),
        ("storage={}", "spec.storage", "it names no place"),
        ("storage={objectStore: {uri: runs}}", "spec.storage.objectStore.uri", "a path is not an object store"),
        ("storage={objectStore: {uri: 's3://b/*'}}", "spec.storage.objectStore.uri", "the folder's whole name"),
        ("storage={objectStore: {uri: 's3://k:s@b/x'}}", "spec.storage.objectStore.uri", '"s3://b/x"'),
        # adapters
        (
            "models=[{name: actor, path: a}, {name: reference, path: b, adapter: {rank: 8}}]",
            "spec.models[1].adapter",
            "no stage trains model reference",
        ),
        ("models=[{name: actor, path: a, adapter: {rank: 0}}]", "spec.models[0].adapter.rank", "1"),
        ("models=[{name: actor, path: a, adapter: {rank: 8, alpha: 0}}]", "spec.models[0].adapter.alpha", "0"),
        (
            "models=[{name: actor, path: a, adapter: {rank: 8, targets: ['']}}]",
            "spec.models[0].adapter.targets[0]",
            "the text is empty",
        ),
        # names
        ("metadata.name=My_Run", "metadata.name", "Write my-run."),
        ("metadata.name=___", "metadata.name", "Write my-job."),
        ("metadata.name=" + "a" * 41, "metadata.name", "at most 40"),
        ("models=[{name: actor, path: a}, {name: actor, path: b}]", "spec.models[1].name", "taken"),
        ("rewards.1={name: correct, run: 'a:b'}", "spec.rewards[1].name", "taken"),
        ("workerGroups=[{name: a}, {name: a}]", "spec.workerGroups[1].name", "taken"),
        ("data.validation=[{path: a, name: x}, {path: b, name: x}]", "spec.data.validation[1].name", "taken"),
        ("rewards.0.run=my_rewards.correct", "spec.rewards[0].run", "module:function"),
        ("rewards.0.column=response_ids", "spec.rewards[0].column", "something else"),
        ("rewards.0.column=rewards", "spec.rewards[0].column", "something else"),
        ("rewards.0.column=advantages", "spec.rewards[0].column", "something else"),
        (
            "workerGroups=[{name: a, accelerator: {profile: nvidia-h10}}]",
            "spec.workerGroups[0].accelerator.profile",
            "Did you mean nvidia-h100?",
        ),
        # sizes
        ("training.miniBatchRows=64", "spec.training.miniBatchRows", "larger than the batch"),
        ("training.miniBatchRows=64", "spec.training.miniBatchRows", "batchSize 8 x groupSize 4 = 32 rows"),
        ("training.miniBatchRows=6", "spec.training.miniBatchRows", "multiple of groupSize 4"),
        # whole groups of 4 that divide 32 rows: 4, 8, 16, 32
        ("training.miniBatchRows=12", "spec.training.miniBatchRows", "nearest size that fits is 8"),
        ("training.miniBatchRows=5", "spec.training.miniBatchRows", "nearest size that fits is 4"),
        ("training.miniBatchRows=28", "spec.training.miniBatchRows", "nearest size that fits is 32"),
        ("training.miniBatchRows=28", "spec.training.miniBatchRows", "batchSize 8 x groupSize 4 = 32 rows"),
        ("workerGroups=[{name: a, replicas: 3}]", "spec.data.batchSize", "multiple of 3, such as 6"),
        ("workerGroups=[{name: a, replicas: 16}]", "spec.data.batchSize", "multiple of 16, such as 16"),
        ("workerGroups=[{name: a, replicas: 16}]", "spec.data.batchSize", "16 workers of group a (rollout)"),
        (
            "workerGroups=[{name: a, accelerator: {profile: ascend-910, count: 3}}]",
            "spec.workerGroups[0].accelerator.count",
            "1, 2, 4, 8, 16",
        ),
        ("algorithm.overlong={bufferTokens: 33}", "spec.algorithm.overlong.bufferTokens", "less than 32"),
        # options
        ("algorithm.groupSize=1", "spec.algorithm.groupSize", "every advantage is 0"),
        ("algorithm.critic={}", "spec.algorithm.critic", "GRPO has no critic"),
        ("algorithm.advantage.gamma=0.9", "spec.algorithm.advantage.gamma", "does not look at it"),
        ("algorithm.advantage.lambda=0.9", "spec.algorithm.advantage.lambda", "does not look at it"),
        ("algorithm.loss.clipHigh=0.1", "spec.algorithm.loss.clipHigh", "0.2 or more"),
        ("algorithm.loss.dualClip=1.0", "spec.algorithm.loss.dualClip", "above 1"),
        ("algorithm.kl={coefficient: 0, target: 0.1}", "spec.algorithm.kl.target", "stays 0"),
        ("algorithm.kl={placement: Reward, estimator: K3Weighted}", "spec.algorithm.kl.estimator", "K1"),
        ("rollout.temperature=0", "spec.rollout.temperature", "validation.temperature"),
        ("rollout.topP=0.9", "spec.rollout.topP", "full distribution"),
        ("rollout.topK=50", "spec.rollout.topK", "full distribution"),
        ("rollout.minP=0.1", "spec.rollout.minP", "full distribution"),
        ("validation.topP=0.9", "spec.validation.topP", "Give validation.temperature too"),
        ("validation.topK=20", "spec.validation.topK", "most likely token"),
        ("validation.minP=0.1", "spec.validation.minP", "most likely token"),
        ("validation.samplesPerPrompt=4", "spec.validation.samplesPerPrompt", "are the same"),
        ("rollout.stop=['']", "spec.rollout.stop[0]", "the text is empty"),
        ("rollout.stop=[a, b, a]", "spec.rollout.stop[2]", "in the list before"),
        ('rollout.stop=["a\\uFFFD"]', "spec.rollout.stop[0]", "U+FFFD"),
        ("rollout.stopTokenIds=[0, 0]", "spec.rollout.stopTokenIds[1]", "in the list before"),
        ("rollout.stopTokenIds=[-1]", "spec.rollout.stopTokenIds[0]", "at least 0"),
        ("rollout.maxSequenceTokens=16", "spec.rollout.maxSequenceTokens", "Write more than 16"),
        ("models.0.chatTemplate={tools: []}", "spec.models[0].chatTemplate.tools", "already"),
        ("models.1={name: reference, path: x, chatTemplate: {a: 1}}", "spec.models[1].chatTemplate", "under actor"),
        ("training.betas=[0.9, 1.0]", "spec.training.betas[1]", "below 1"),
        ("training.optimizer={states: BFloat16}", "spec.training.betas[1]", "Write at most 0.996, such as [0.9, 0.99]"),
        ("training.optimizer={states: Int4}", "spec.training.optimizer.states", "Int8"),
        ("training={optimizer: {states: Int8}, precision: Float64}", "spec.training.optimizer.states", "in Float64"),
        ("training.optimizer=Int8", "spec.training.optimizer", "mapping of fields"),
        ("training.memory={activationCheckpointing: true}", "spec.training.memory.activationCheckpointing", "Full"),
        ("training.memory={offload: true}", "spec.training.memory.offload", "mapping of fields"),
        ("training.memory={offload: {gradients: true}}", "spec.training.memory.offload.gradients", "optimizer"),
        ("training.activationCheckpointing=true", "spec.training.activationCheckpointing", "no such field"),
        ("training.compile=Full", "spec.training.compile", "true or false"),
        ("training.profile.steps=[1, 0]", "spec.training.profile.steps[1]", "1"),
        ("training.profile.steps=[10, 11]", "spec.training.profile.steps[1]", "Write a step from 1 to 10."),
        ("training.profile.ranks=[0, 1]", "spec.training.profile.ranks[1]", "Write a number from 0 to 0."),
        ("training.profile.ranks=[]", "spec.training.profile.ranks", "the list is empty"),
        ("training.profile.stages=[update, updat]", "spec.training.profile.stages[1]", "Did you mean update?"),
        ("validation.everySteps=5", "spec.validation.everySteps", "data.validation"),
        ("validation={samplesPerPrompt: 4, temperature: 1}", "spec.validation.samplesPerPrompt", "no data"),
        ("checkpoint.keepBest=1", "spec.checkpoint.keepBest", "data.validation"),
        ("rewards=[]", "spec.rewards", "no reward function"),
        # data
        ("data.train.0.weight=-1", "spec.data.train[0].weight", "at least 0"),
        ("data.train.0.weight=.inf", "spec.data.train[0].weight", "number"),
        ("data.train.0.weight=0", "spec.data.train", "every weight is 0"),
        ("data.train=[{path: a, weight: 0}, {path: b, weight: 0}]", "spec.data.train", "every weight is 0"),
        ("data.train=[{path: a, weight: 1}, {path: b}]", "spec.data.train[1].weight", "this one has none"),
        ("data.validation=[{path: a, weight: 1}]", "spec.data.validation[0].weight", "every row of validation data"),
        ("data.train.0.path=ftp://host/a.jsonl", "spec.data.train[0].path", "Known: s3://, gs://, az://, https://"),
        ("data.train.0.path=s3:///a.jsonl", "spec.data.train[0].path", "Write s3://bucket/folder/file.jsonl."),
        ("data.train.0.path=az://account", "spec.data.train[0].path", "az://account/container/"),
        ("data.train.0.path=s3://bucket/a.jsonl.gz", "spec.data.train[0].path", "uncompressed, or as Parquet"),
        ("data.train.0.path='https://host/*.jsonl'", "spec.data.train[0].path", "Name each file"),
        ("data.validation=[{path: 's3://me:secret@b/a.jsonl'}]", "spec.data.validation[0].path", "no credentials"),
        ("data.train.0.path='https://host/a.jsonl?signature=1'", "spec.data.train[0].path", "no credentials"),
        ("code={}", "spec.code", "exactly one"),
        ("env=[{name: A}]", "spec.env[0]", "exactly one"),
        ("workerGroups=[{name: a, topology: {preferred: x, required: y}}]", "spec.workerGroups[0].topology", "both"),
        ("failurePolicy.rules=[{action: Restart}]", "spec.failurePolicy.rules[0]", "onExitCodes"),
        (
            "failurePolicy.rules=[{onExitCodes: [64], action: Restart}]",
            "spec.failurePolicy.rules[0].onExitCodes",
            "end the same way",
        ),
        # placement
        ("workerGroups=[{name: a}, {name: b}]", "spec.workerGroups", "named rollout"),
        ("workerGroups=[{name: rollout}, {name: b}, {name: c}]", "spec.workerGroups", "one other"),
        ("models.1={name: judge, path: x}", "spec.models[1].name", "no stage uses the model"),
        ("models.0.name=policy", "spec.models", "Name the policy actor."),
    ],
)
def test_one_mistake_is_found_where_it_is(override, path, words):
    result = problems(override)
    matching = [str(problem) for problem in result if problem.path == path]
    assert matching, [str(problem) for problem in result]
    assert words in matching[0]


@pytest.mark.parametrize(
    ("overrides", "path", "words"),
    [
        # references
        ([replaced(REWARD, REWARD.replace("rollout]", "rolout]"))], "stages[1].after[0]", "Did you mean rollout?"),
        ([replaced(REWARD, REWARD.replace("Reward,", "Rewards,"))], "stages[1].run", "Did you mean Reward?"),
        ([replaced(REWARD, REWARD.replace("Reward,", "Rewards,"))], "stages[1].run", "Your own stage is written"),
        ([replaced(REFERENCE, REFERENCE.replace("[reference]", "[refrence]"))], "models[0]", "Did you mean reference?"),
        ([replaced(ROLLOUT, ROLLOUT + ", group: trian")], "stages[0].group", "Did you mean train?"),
        ([dag(*GRPO, GRPO[0])], "stages[5].name", "taken by spec.dag.stages[0]"),
        ([replaced(REWARD, REWARD.replace("rollout]", "rollout, reward]"))], "stages[1].after[1]", "after itself"),
        ([dag("name: mine, run: 'm:f', after: [one, other]")], "stages[0].after[0]", "There is none to choose from."),
        # shape
        ([replaced(REWARD, REWARD.replace("[rollout]", "[advantage]"))], "after", "reward -> advantage -> reward"),
        ([replaced(ROLLOUT, ROLLOUT + ", after: [reward]")], "stages[0].after", "cycle"),
        (
            [dag("name: mine, run: 'm:f'", ROLLOUT + ", after: [mine]", *GRPO[1:])],
            "stages[1].after",
            "a step begins in Rollout, so nothing comes before it",
        ),
        ([replaced(REWARD, "name: reward, run: Reward")], "stages[1].after", "unreachable"),
        ([dag(*GRPO, "name: log, run: 'm:f'")], "stages[5].after", "unreachable"),
        ([dag("name: log, run: 'm:f'"), "rewards=[]"], "stages", "Rollout"),
        ([KL_OFF, dag(ROLLOUT, REWARD, ADVANTAGE)], "stages", "no stage updates a policy"),
        # columns
        (
            [dag(ROLLOUT, REFERENCE, UPDATE, ADVANTAGE.replace("reward]", "rollout]")), "rewards=[]"],
            "stages[3]",
            "run: Reward",
        ),
        ([replaced(UPDATE, LONE_UPDATE)], "stages[4].after", "Add reference to after."),
        ([replaced(UPDATE, LONE_UPDATE)], "stages[4].after", "reference that writes it does not come before it"),
        ([dag(*GRPO, "name: more, run: Reward, after: [rollout]")], "stages[5]", "reward writes column rewards too"),
        (
            [dag(*GRPO, "name: mine, run: 'm:f', after: [rollout], reads: [respons_ids]")],
            "stages[5].reads",
            "Did you mean response_ids?",
        ),
        ([dag(*GRPO, "name: mine, run: 'm:f', after: [rollout], reads: [qqqq]")], "stages[5].reads", "Written columns"),
        ([dag(*GRPO, "name: mine, run: 'm:f', after: [rollout], reads: [qqqq]")], "stages[5].reads", "in writes"),
        # fields of stages
        ([replaced(REWARD, REWARD + ", reads: [x]")], "stages[1].reads", "its own columns"),
        ([replaced(REWARD, REWARD + ", writes: [x]")], "stages[1].writes", "its own columns"),
        ([replaced(ROLLOUT, ROLLOUT + ", reads: [x]")], "stages[0].reads", "its own columns"),
        ([replaced(REWARD, REWARD + ", options: {a: 1}")], "stages[1].options", "no options"),
        ([replaced(ROLLOUT, ROLLOUT + ", balance: Tokens")], "stages[0].balance", "nothing to balance"),
        ([replaced(ADVANTAGE, ADVANTAGE + ", rename: {reward: x}")], "rename.reward", "Did you mean rewards?"),
        ([dag(*GRPO, "name: mine, run: 'm:f', after: [rollout], rename: {a: b}")], "stages[5].rename", "catalogue"),
        ([dag(*GRPO, "name: mine, run: 'm:f', after: [rollout], models: [actor]")], "stages[5].models", "not built"),
        ([replaced(REFERENCE, "name: reference, run: LogProbs, after: [rollout]")], "stages[2].models", "[reference]"),
        ([replaced(REWARD, REWARD + ", models: [actor]")], "stages[1].models", "no model"),
        (["models.0.name=policy", dag(*GRPO)], "stages[0].models", "or write models: [policy]"),
        # contradictions
        ([KL_OFF, dag(*GRPO)], "stages[2]", "kl.coefficient is 0"),
        (
            [dag(*GRPO, UPDATE.replace("name: update", "name: again"))],
            "stages[5].models",
            "updates model actor already",
        ),
        # placement
        (
            [*TWO_GROUPS, dag(ROLLOUT, REWARD, OLD, ADVANTAGE, UPDATE + ", group: train")],
            "stages[2].group",
            "Write group: train.",
        ),
        ([*TWO_GROUPS, dag(*(f"{stage}, group: train" for stage in GRPO))], "spec.workerGroups[1]", "no stage runs"),
        ([dag(*GRPO), "workerGroups=[{name: a}, {name: b}]"], "stages[0].group", "one of a, b"),
    ],
)
def test_one_mistake_in_a_dag_is_found_where_it_is(overrides, path, words):
    result = [str(problem) for problem in problems(*overrides)]
    assert any(path in item.partition(": ")[0] and words in item for item in result), result


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        (GRPO[1:], "Add a stage with run: Rollout and name: rollout, which stages come after."),
        ([stage.replace(", after: [rollout]", "") for stage in GRPO[1:]], "run: Rollout; the others come after it."),
        # two names that nobody has: which one was to make rows?
        (["name: more, run: 'm:f', after: [elsewhere]", *GRPO[1:]], "run: Rollout; the others come after it."),
    ],
)
def test_a_dag_in_which_no_stage_makes_rows_is_reported(stages, words):
    result = problems(dag(*stages))
    assert [item.message for item in result if item.message != "there is no such stage"] == ["no stage makes rows"]
    assert words in result[-1].fix
    assert len(result) == 1 or "name:" not in words


def test_the_first_stage_that_no_row_gets_to_is_reported():
    # the advantage comes after the reward, and the update after both
    (result,) = problems(replaced(REWARD, "name: reward, run: Reward"))
    assert (result.path, result.fix) == ("spec.dag.stages[1].after", "Put rollout, or a stage after it, into after.")
    (result,) = problems(replaced(REWARD, REWARD.replace("[rollout]", "[qqqq]")))
    assert (result.path, result.message) == ("spec.dag.stages[1].after[0]", "there is no such stage")


@pytest.mark.parametrize("column", ["row_ids", "group_ids", "num_tokens", "row_id", "group_id"])
def test_indices_come_with_every_row_and_are_nobodys_to_write(column):
    (problem,) = problems(dag(*GRPO, f"name: mine, run: 'm:f', after: [rollout], reads: [{column}]"))
    assert (problem.path, problem.fix) == ("spec.dag.stages[5].reads", "Leave it out: it comes with every row.")
    mine = f"name: mine, run: 'm:f', after: [rollout], writes: [{column}]"
    (problem,) = problems(dag(*GRPO, mine))
    assert (problem.path, problem.found) == ("spec.dag.stages[5].writes", f'"{column}"')
    assert "index" in problem.message
    # of two, the first is reported, and the second as one too many
    again, index = problems(dag(*GRPO, mine, mine.replace("mine", "more")))
    assert (again.path, index.path) == ("spec.dag.stages[6]", "spec.dag.stages[5].writes")


@pytest.mark.parametrize(
    ("column", "maker"),
    [
        ("rewards", "run: Reward"),
        ("advantages", "run: Advantage"),
        ("values", "run: Values"),
        ("returns", "an estimator with a critic"),
        ("baseline_rewards", "run: Sample"),
        ("row_weights", "run: Sample"),
        ("agent_ids", "which agent wrote it"),
        ("turn_ids", "in which turn"),
        ("ref_log_probs", "models: [reference]"),
        ("old_log_probs", "models: [actor]"),
    ],
)
def test_a_column_that_is_missing_is_reported_with_the_stage_that_makes_it(column, maker):
    result = problems(dag(ROLLOUT, f"name: mine, run: 'm:f', after: [rollout], reads: [{column}]"))
    (problem,) = [problem for problem in result if problem.path == "spec.dag.stages[1].reads"]
    assert column in problem.message
    assert maker in problem.fix


@pytest.mark.parametrize(
    ("right", "wrong", "path"),
    [
        (ADVANTAGE, ADVANTAGE.replace("run: Advantage", "run: Advantege"), "stages[3].run"),
        (REWARD, REWARD.replace("rollout]", "rolout]"), "stages[1].after[0]"),
        # likest to its own name, which it cannot mean
        (ADVANTAGE, ADVANTAGE.replace("reward]", "reward, advantagee]"), "stages[3].after[1]"),
        (REFERENCE, REFERENCE.replace("[reference]", "[refrence]"), "stages[2].models[0]"),
        (ROLLOUT, ROLLOUT + ", group: trian", "stages[0].group"),
    ],
)
def test_a_misspelt_name_is_one_problem_not_one_for_everything_downstream(right, wrong, path):
    (problem,) = problems(replaced(right, wrong))
    assert problem.path == f"spec.dag.{path}"


def test_what_is_misspelt_counts_as_used():
    models = "models=[{name: actor, path: a}, {name: judge, path: b}]"
    scored = dag(*GRPO, "name: judged, run: LogProbs, models: [juge], after: [rollout]")
    assert [problem.path for problem in problems(models, scored) if "no stage uses" in problem.message] == []
    placed = [f"{stage}, group: {'rolout' if stage == ROLLOUT else 'train'}" for stage in GRPO]
    (problem,) = problems(*TWO_GROUPS, dag(*placed))
    assert (problem.path, problem.fix) == ("spec.dag.stages[0].group", "Did you mean rollout?")


def test_ppo_without_a_critic_in_the_dag_says_which_stage_is_missing():
    result = problems(*PPO, dag(*GRPO))
    assert any("run: Values" in problem.fix for problem in result)


def test_ppo_does_not_look_at_options_of_grpo():
    (problem,) = problems("algorithm={name: PPO, advantage: {normalizeStd: false}}")
    assert problem.path == "spec.algorithm.advantage.normalizeStd"
    (problem,) = problems("algorithm={name: PPO, critic: {warmupSteps: 10}}")
    assert "never learns" in problem.message


def test_a_schedule_with_a_length_of_its_own_falls_and_reaches_to_the_end():
    linear = ("training.schedule=Linear", "stop.steps=10")
    assert problems(*linear, "training.scheduleSteps=10") == []
    (short,) = problems(*linear, "training.scheduleSteps=9")
    assert short.path == "spec.training.scheduleSteps" and short.fix == "Write at least 10."
    (constant,) = problems("stop.steps=10", "training.scheduleSteps=10")
    assert "Constant" in constant.message


def test_kl_in_the_reward_needs_old_log_probs_of_the_training_engine():
    assert problems("algorithm.kl.placement=Reward") == []
    result = problems("algorithm.kl.placement=Reward", dag(*GRPO))
    assert {"old_log_probs" in problem.message for problem in result} == {True, False}


def test_a_reward_that_no_stage_calls():
    mine = "name: reward, run: 'm:f', after: [rollout], writes: [rewards]"
    (problem,) = problems(replaced(REWARD, mine))
    assert problem.path == "spec.rewards"
    assert problems(replaced(REWARD, mine), "rewards=[]") == []
    built_in = problems(dag(ROLLOUT, REFERENCE, "name: update, run: UpdatePolicy, after: [rollout, reference]"))
    assert "no stage calls the reward functions" in [problem.message for problem in built_in]


def test_stages_of_ones_own_may_call_the_reward_functions():
    own = problems(dag("name: mine, run: 'm:f', writes: [rewards]"))
    assert not any(problem.path == "spec.rewards" for problem in own)


def test_cluster_only_fields_are_accepted():
    assert (
        problems(
            "scheduling={provider: Kueue, queue: gpus, priorityClassName: high, timeoutSeconds: 60}",
            "lifecycle={stallSeconds: 60, activeSeconds: 3600, terminationGraceSeconds: 30, cleanPodPolicy: All}",
            "successPolicy={groups: [a]}",
            "imagePullSecrets=[registry]",
            "podSecurity=Baseline",
            "env=[{name: TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token}}}]",
            "code={configMap: mine}",
            "storage={persistentVolumeClaim: team}",
            "workerGroups=[{name: a, topology: {required: zone}, rdma: {resource: rdma/hca, count: 2}, "
            "template: {spec: {hostNetwork: true}}}]",
            "monitoring={podMonitor: true}",
            "suspend=true",
        )
        == []
    )


def test_a_success_policy_names_worker_groups():
    (problem,) = problems("successPolicy={groups: [trains]}")
    assert problem.path == "spec.successPolicy.groups[0]"
    assert "Did you mean train?" in problem.fix


@pytest.mark.parametrize(
    "source", ["{}", "{secretKeyRef: {name: hf, key: token}, fieldRef: {fieldPath: spec.nodeName}}"]
)
def test_a_value_from_one_place(source):
    (problem,) = problems(f"env=[{{name: TOKEN, valueFrom: {source}}}]")
    assert (problem.path, problem.message) == ("spec.env[0].valueFrom", "a value comes from exactly one place")


def test_a_status_in_a_file_is_ignored():
    assert problems(text=SMALL + "status: {phase: Running, attempt: 2}\n") == []
