"""Tokenizers that are not there, and those of models that get rows of one another."""

import pytest
import transformers.models.auto.tokenization_auto  # noqa: F401 - sets a variable of torch, which no test may leave behind
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from rljob_api.tests.builders import make_plan
from rljob_worker.errors import InvalidJob
from rljob_worker.runtime.setup.tokenizers import require_alike, require_tokens_of_policies, why_no_tokenizer


def tokenizer(words="a b <end>", **special):
    vocabulary = {word: number for number, word in enumerate(words.split())}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="a")), **special)


def test_policies_of_a_team_have_one_vocabulary_and_the_special_tokens_of_one():
    solver = tokenizer(eos_token="<end>", pad_token="b")
    require_alike("left", "right", {"left": solver, "right": tokenizer(eos_token="<end>", pad_token="b")})
    swapped = tokenizer(eos_token="b", pad_token="<end>")
    with pytest.raises(InvalidJob, match=r"policies left and right differ in special tokens: eos_token, pad_token;"):
        require_alike("left", "right", {"left": solver, "right": swapped})
    with pytest.raises(InvalidJob, match=r"policies left and right have other tokens"):
        require_alike("left", "right", {"left": solver, "right": tokenizer("b a <end>", eos_token="<end>")})


def written(folder, words):
    tokenizer(words, eos_token="<end>").save_pretrained(folder)
    return folder


TEAM = (
    "rollout.conversation={agents: [{name: a, policy: left}, {name: b, policy: right, critic: judge}], rounds: 1}",
    "algorithm={name: MARFT, kl: {coefficient: 0}}",
)


@pytest.mark.parametrize(("words", "is_refused"), [("a b <end>", False), ("b a <end>", True), (None, False)])
def test_a_critic_of_a_team_has_the_tokens_of_the_policy_whose_rows_it_values(tmp_path, words, is_refused):
    paths = {name: written(tmp_path / name, "a b <end>") for name in ("left", "right")}
    paths["judge"] = tmp_path / "judge" if words is None else written(tmp_path / "judge", words)
    (tmp_path / "judge").mkdir(exist_ok=True)  # a folder without a tokenizer says nothing of its tokens
    models = ", ".join(f"{{name: {name}, path: {path}}}" for name, path in paths.items())
    plan = make_plan(f"models=[{models}]", *TEAM)
    if not is_refused:
        require_tokens_of_policies(plan, plan.stages)
        return
    with pytest.raises(
        InvalidJob, match=r"models: judge has other tokens than right, whose rows stage values gives it"
    ):
        require_tokens_of_policies(plan, plan.stages)


def test_a_critic_and_a_reference_of_one_policy_have_its_tokens(tmp_path):
    paths = {"actor": written(tmp_path / "actor", "a b <end>"), "other": written(tmp_path / "other", "b a <end>")}
    for name, algorithm in (("critic", "PPO"), ("reference", "GRPO"), ("reference", "GRPO, kl: {estimator: Full}")):
        models = f"models=[{{name: actor, path: {paths['actor']}}}, {{name: {name}, path: {paths['other']}}}]"
        plan = make_plan(models, f"algorithm={{name: {algorithm}}}")
        with pytest.raises(InvalidJob, match=f"models: {name} has other tokens than actor"):
            require_tokens_of_policies(plan, plan.stages)


def test_a_model_without_tokenizer_says_what_is_there_and_what_is_needed(tmp_path):
    assert "which holds nothing; it needs tokenizer.json" in why_no_tokenizer(str(tmp_path), OSError("x"))
    (tmp_path / "config.json").touch()
    assert f"{tmp_path}, which holds config.json;" in why_no_tokenizer(str(tmp_path), OSError("x"))


def test_a_name_that_nobody_knows_is_no_directory_and_not_on_the_hub():
    said = why_no_tokenizer("qwen/typo", OSError("We could not connect\nand more"))
    assert said.startswith("'qwen/typo' is not a directory next to the job's YAML")
    assert "We could not connect; correct the path" in said and "and more" not in said
