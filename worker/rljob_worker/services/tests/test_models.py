"""Shipped models on small ones that know nothing: what they are asked, what they answer, what they refuse."""

import json
import math
import shutil
import warnings

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

from rljob_api.catalogue.services import EmbeddingOptions, JudgeOptions, ProcessRewardModelOptions, RewardModelOptions
from rljob_worker.errors import InvalidJob
from rljob_worker.services.models.embedding import ServedEmbedding
from rljob_worker.services.models.judge import ServedJudge
from rljob_worker.services.models.process_reward_model import ServedProcessRewardModel
from rljob_worker.services.models.reward_model import ServedRewardModel
from rljob_worker.services.placement import ModelPlacement
from rljob_worker.services.requests import BadRequest
from rljob_worker.tiny.make import make_model
from rljob_worker.tiny.recipe import quick

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of Ray's own, while it is imported
    from rljob_worker.services.applications import Answering


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("served")
    make_model(quick(0), directory)
    return directory / "model"


@pytest.fixture(scope="module")
def classifier(language_model):
    return classifier_of(language_model, AutoModelForSequenceClassification, 1)


@pytest.fixture(scope="module")
def step_classifier(language_model):
    return classifier_of(language_model, AutoModelForTokenClassification, 2)


def classifier_of(language_model, family, num_labels):
    folder = language_model.parent / f"labels-{num_labels}"
    torch.manual_seed(0)
    model = family.from_pretrained(language_model, num_labels=num_labels)
    torch.nn.init.normal_(model.score.weight)  # far enough from 0 to tell texts apart
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(language_model).save_pretrained(folder)
    return folder


def row(prompt, response, **columns):
    return {"prompt": prompt, "response": response, **columns}


ROWS = [row("How many eggs?", "3*4=12\n12-5=7\n#### 7"), row("How many?", "#### 9"), row("How many eggs are left?", "")]


def reward_model(path, **options):
    return ServedRewardModel(RewardModelOptions(path=str(path), **options))


def test_a_reward_is_what_transformers_says_of_the_row_alone(classifier):
    rewards = reward_model(classifier).rewards(ROWS)
    tokenizer = AutoTokenizer.from_pretrained(classifier)
    model = AutoModelForSequenceClassification.from_pretrained(classifier).eval()
    model.config.pad_token_id = tokenizer.pad_token_id
    for item, answer in zip(ROWS, rewards, strict=True):
        messages = [{"role": "user", "content": item["prompt"]}, {"role": "assistant", "content": item["response"]}]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        with torch.inference_mode():
            alone = model(**tokenizer(text, return_tensors="pt", add_special_tokens=False)).logits.item()
        assert answer == {"reward": pytest.approx(alone, abs=1e-4), "truncated": 0.0}
    assert len({answer["reward"] for answer in rewards}) == 3


def test_what_is_read_together_changes_no_reward(classifier):
    whole, apart = reward_model(classifier), reward_model(classifier, batch_tokens=1)
    rewards = [[answer["reward"] for answer in model.rewards(ROWS)] for model in (whole, apart)]
    assert rewards[0] == pytest.approx(rewards[1], abs=1e-4)


def test_a_sigmoid_is_between_0_and_1(classifier):
    logits = [answer["reward"] for answer in reward_model(classifier).rewards(ROWS)]
    result = [answer["reward"] for answer in reward_model(classifier, activation="Sigmoid").rewards(ROWS)]
    assert result == pytest.approx([1 / (1 + math.exp(-logit)) for logit in logits], abs=1e-4)


def test_a_template_says_what_is_read(classifier):
    model = reward_model(classifier, template="{level}: {response}")
    same = row("other", "#### 9", level="easy"), row("else", "#### 9", level="easy"), row("x", "#### 9", level="hard")
    first, second, third = (answer["reward"] for answer in model.rewards(same))
    assert first == pytest.approx(second) != pytest.approx(third)


def test_what_is_too_long_loses_its_beginning_and_says_so(classifier):
    model = reward_model(classifier, template="{prompt} {response}", max_tokens=3)
    long, short = model.rewards([row("a b c d", "123"), row("", "7")])
    assert (long["truncated"], short["truncated"]) == (1.0, 0.0)
    other = model.rewards([row("q r s t", "123")])
    assert other[0]["reward"] == pytest.approx(long["reward"])  # its beginning is not read


def test_a_tokenizer_that_lies_elsewhere_is_found_there(classifier, tmp_path):
    for file in classifier.iterdir():
        if not file.name.startswith(("tokenizer", "chat_template", "special_tokens")):
            shutil.copy(file, tmp_path)
    with pytest.raises(InvalidJob, match="no tokenizer at .*; name one in options.tokenizer"):
        reward_model(tmp_path)
    assert reward_model(tmp_path, tokenizer=str(classifier)).rewards(ROWS) == reward_model(classifier).rewards(ROWS)


def test_without_a_chat_template_prompt_and_response_are_read_one_after_the_other(classifier, tmp_path):
    without = without_chat_template(classifier, tmp_path / "plain")
    both = reward_model(classifier, template="{prompt}{response}").rewards(ROWS)
    assert reward_model(without).rewards(ROWS) == both != reward_model(classifier).rewards(ROWS)


def test_a_model_that_was_not_trained_as_a_classifier_is_refused(language_model, classifier):
    with pytest.raises(InvalidJob, match="lacks weights that AutoModelForSequenceClassification needs"):
        reward_model(language_model)
    with pytest.raises(InvalidJob, match="has 2 outputs, and this application reads 1"):
        reward_model(two_outputs(language_model))
    with pytest.raises(InvalidJob, match="no tokenizer at"):
        reward_model("/nowhere")
    with pytest.raises(BadRequest, match="a classifier has no route /v1/x"):
        reward_model(classifier).answer("/v1/x", {})


def two_outputs(language_model):
    folder = language_model.parent / "two-outputs"
    model = AutoModelForSequenceClassification.from_pretrained(language_model, num_labels=2)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(language_model).save_pretrained(folder)
    return folder


def test_steps_are_scored_where_they_end(step_classifier):
    options = ProcessRewardModelOptions(path=str(step_classifier), aggregate="Mean")
    (result,) = ServedProcessRewardModel(options).rewards(ROWS[:1])
    tokenizer = AutoTokenizer.from_pretrained(step_classifier)
    model = AutoModelForTokenClassification.from_pretrained(step_classifier).eval()
    # head, then each of the three steps with the end of its line
    pieces = [tokenizer(text)["input_ids"] for text in ("How many eggs?", "3*4=12\n", "12-5=7\n", "#### 7\n")]
    ends = [sum(map(len, pieces[: i + 1])) - 1 for i in (1, 2, 3)]
    with torch.inference_mode():
        right = model(torch.tensor([sum(pieces, [])])).logits.softmax(-1)[0, ends, 1]
    # where each ends in the response, which has 20 characters
    at_ends = [[end, pytest.approx(score, abs=1e-4)] for end, score in zip([7, 14, 20], right.tolist(), strict=True)]
    mean = pytest.approx(right.mean().item(), abs=1e-4)
    assert result == {"reward": mean, "step_rewards": at_ends, "steps": 3.0, "truncated": 0.0}


def scored(path, rows, **options):
    return ServedProcessRewardModel(ProcessRewardModelOptions(path=str(path), **options)).rewards(rows)


def test_steps_of_rows_that_are_read_together_are_those_of_each_row(step_classifier):
    together = scored(step_classifier, ROWS)
    alone = [answer for item in ROWS for answer in scored(step_classifier, [item])]
    assert [answer["steps"] for answer in together] == [3.0, 1.0, 1.0]
    for one, other in zip(together, alone, strict=True):
        assert [end for end, _ in one["step_rewards"]] == [end for end, _ in other["step_rewards"]]
        assert [score for _, score in one["step_rewards"]] == pytest.approx(
            [score for _, score in other["step_rewards"]], abs=1e-4
        )


def test_steps_are_divided_and_begun_as_the_job_says(step_classifier):
    (result,) = scored(step_classifier, [row("q", "3*4=12;12-5=7", level="easy")], separator=";", template="{level}")
    assert [end for end, _ in result["step_rewards"]] == [7, 13]
    (other,) = scored(step_classifier, [row("z", "3*4=12;12-5=7", level="easy")], separator=";", template="{level}")
    (third,) = scored(step_classifier, [row("q", "3*4=12;12-5=7", level="hard")], separator=";", template="{level}")
    assert other == result and third["reward"] != pytest.approx(result["reward"])


def test_steps_that_were_cut_off_have_no_score(step_classifier):
    def steps(max_tokens):
        options = ProcessRewardModelOptions(path=str(step_classifier), max_tokens=max_tokens)
        (result,) = ServedProcessRewardModel(options).rewards(ROWS[:1])
        return result["truncated"], [end for end, _ in result["step_rewards"]]

    tokenizer = AutoTokenizer.from_pretrained(step_classifier)
    pieces = [tokenizer(text)["input_ids"] for text in ("How many eggs?", "3*4=12\n", "12-5=7\n", "#### 7\n")]
    whole, last = sum(map(len, pieces)), len(pieces[-1])
    assert steps(whole) == (0.0, [7, 14, 20])
    assert steps(whole - 1) == (1.0, [7, 14, 20])  # of the head alone
    assert steps(last) == (1.0, [20])
    assert steps(last + 1) == (1.0, [14, 20])  # the end of the step before is there


def test_the_worst_step_is_the_reward_unless_the_job_says_otherwise(step_classifier):
    def rewards(**options):
        model = ServedProcessRewardModel(ProcessRewardModelOptions(path=str(step_classifier), **options))
        return [answer["reward"] for answer in model.rewards(ROWS)]

    assert all(0 <= low <= middle <= 1 for low, middle in zip(rewards(), rewards(aggregate="Mean"), strict=True))
    assert rewards()[0] < rewards(aggregate="Mean")[0]


def test_a_step_classifier_has_two_labels(classifier):
    with pytest.raises(InvalidJob):
        ServedProcessRewardModel(ProcessRewardModelOptions(path=str(classifier)))


def judge(path, **options):
    return ServedJudge(JudgeOptions(path=str(path), rubric="{prompt} {response}?", max_new_tokens=4, **options))


class Scripted(ServedJudge):
    """A judge that says these, in their order, and notes what it was asked."""

    def __init__(self, path, said, **options):
        super().__init__(JudgeOptions(path=str(path), rubric="{response}?", **options))
        self.said, self.prompts = list(said), []

    def _batch(self, prompts, temperature, limit, count):
        self.prompts += prompts
        result, self.said = self.said[: len(prompts) * count], self.said[len(prompts) * count :]
        return result


def test_what_a_judge_says_becomes_its_reward(language_model):
    said = ["So #### 5", "#### 10 of 10", "#### 11", "all good"]
    rows = [row("", str(n)) for n in range(4)]  # as long as each other, so that they are asked in their order
    rewards = Scripted(language_model, said, highest=10.0, unparsed=0.3).rewards(rows)
    assert [answer["reward"] for answer in rewards] == [0.5, 1.0, 0.3, 0.3]
    assert [answer["unparsed"] for answer in rewards] == [0.0, 0.0, 1.0, 1.0]


def test_votes_belong_to_their_rows(language_model):
    said = ["#### 1", "#### 0", "hm", "#### 1", "#### 1", "#### 1"]
    first, second = Scripted(language_model, said, votes=3, temperature=1.0).rewards([row("", "1"), row("", "2")])
    # (1 + 0) / 2, where one of three says nothing
    assert first == {"reward": 0.5, "unparsed": pytest.approx(1 / 3), "disagreement": 0.5, "truncated": 0.0}
    assert second == {"reward": 1.0, "unparsed": 0.0, "disagreement": 0.0, "truncated": 0.0}


def test_a_question_that_is_too_long_loses_its_beginning_and_says_so(language_model):
    judge = Scripted(language_model, ["#### 1"] * 2, max_tokens=12)
    long, short = judge.rewards([row("", "7" * 40), row("", "7")])
    assert (long["truncated"], short["truncated"]) == (1.0, 0.0)
    tokenizer = AutoTokenizer.from_pretrained(language_model)
    whole = tokenizer.apply_chat_template([{"role": "user", "content": "7" * 40 + "?"}], add_generation_prompt=True)
    asked = max(judge.prompts, key=len)
    assert len(asked) == 12 and asked == list(whole["input_ids"])[-12:]


def test_a_judge_that_says_no_number_is_counted(language_model):
    rewards = judge(language_model, mark="no judge says this", unparsed=0.25).rewards(ROWS)
    assert rewards == [{"reward": 0.25, "unparsed": 1.0, "truncated": 0.0}] * 3


def test_a_judge_answers_rows_in_their_order_whatever_it_reads_together(language_model):
    together, alone = judge(language_model), judge(language_model, batch_tokens=1)
    asked = {"messages": [{"role": "user", "content": "How many eggs? #### 9?"}], "max_tokens": 4}
    texts = [model.answer("/v1/chat/completions", asked)["choices"] for model in (together, alone)]
    assert texts[0] == texts[1] and texts[0][0]["message"]["role"] == "assistant"
    assert together.rewards(ROWS) == alone.rewards(ROWS)


def test_votes_are_drawn_and_a_chat_has_as_many_choices_as_it_asks_for(language_model):
    torch.manual_seed(0)
    model = judge(language_model, votes=3, temperature=5.0)
    assert len(model.rewards(ROWS)) == 3
    asked = {"messages": [{"role": "user", "content": "x"}], "n": 3, "temperature": 5.0}
    said = model.answer("/v1/chat/completions", asked)
    assert [choice["index"] for choice in said["choices"]] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in said["choices"]}) > 1
    json.dumps(said)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/models", {}, "a judge has no route /v1/models"),
        ("/v1/chat/completions", {}, "messages is a list"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": 0}, "n from 1 to 64"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": "1"}, "n is not a number"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "7" * 99}]}, "more than maxTokens 50"),
    ],
)
def test_a_chat_that_cannot_be_is_refused(language_model, path, body, words):
    with pytest.raises(BadRequest) as caught:
        judge(language_model, max_tokens=50).answer(path, body)
    assert words in str(caught.value)


def test_a_judge_needs_a_chat_template(language_model):
    with pytest.raises(InvalidJob, match="no chat template"):
        judge(without_chat_template(language_model, language_model.parent / "no-template"))


def without_chat_template(model, folder):
    shutil.copytree(model, folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_texts_become_vectors_of_length_1_and_like_texts_are_near(language_model):
    model = ServedEmbedding(EmbeddingOptions(path=str(language_model)))
    said = model.answer("/v1/embeddings", {"input": ["12-5=7", "12-5=7", "How many eggs?"]})
    first, second, other = (torch.tensor(item["embedding"]) for item in said["data"])
    assert first.norm().item() == pytest.approx(1.0, abs=1e-5)
    assert (first @ second).item() == pytest.approx(1.0, abs=1e-5)
    assert (first @ other).item() < 0.999
    (same, different) = model.rewards([row("", "#### 7", reference="#### 7"), row("", "#### 7", reference="eggs")])
    assert same["reward"] == pytest.approx(1.0, abs=1e-5)
    assert different["reward"] < 0.999


@pytest.mark.parametrize("name", ["reward_model", "process_reward_model", "judge", "embedding"])
def test_a_copy_of_any_application_lies_where_it_is_told_to(name, language_model):
    """There is no such device here."""
    options = {"path": str(language_model)} | ({"rubric": "?"} if name == "judge" else {})
    with pytest.raises(InvalidJob, match=r"a copy wants 2 NPU devices .profile huawei-npu. and finds none"):
        Answering(name, options, ModelPlacement("npu", 2, "huawei-npu"))


def test_either_text_that_is_too_long_loses_its_beginning_and_says_so(language_model):
    model = ServedEmbedding(EmbeddingOptions(path=str(language_model), max_tokens=3))
    rows = [row("", "7", reference="7"), row("", "12345 789", reference="7"), row("", "7", reference="12345 789")]
    rewards = model.rewards([*rows, row("", "99999 789", reference="11111 789")])
    assert [answer["truncated"] for answer in rewards] == [0.0, 1.0, 1.0, 1.0]
    assert rewards[3]["reward"] == pytest.approx(1.0, abs=1e-5), "what differs is not read"


def test_an_embedding_needs_references_and_has_one_route(language_model):
    model = ServedEmbedding(EmbeddingOptions(path=str(language_model)))
    with pytest.raises(BadRequest, match="name the data's column"):
        model.rewards(ROWS)
    with pytest.raises(BadRequest, match="no route /v1/x"):
        model.answer("/v1/x", {})
