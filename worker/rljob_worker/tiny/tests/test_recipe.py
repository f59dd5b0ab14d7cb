"""The recipe of the tiny model and its data."""

from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rljob_worker.tiny import recipe
from rljob_worker.tiny.make import make_model
from rljob_worker.tiny.model import build_model, greedy_answers, stated_result
from rljob_worker.tiny.pretrain import answer_loss, collate, pretrain, pretraining_rate_factor
from rljob_worker.tiny.problems import dataset, split_problems
from rljob_worker.tiny.recipe import Pretraining, Recipe, quick
from rljob_worker.tiny.tokenizer import train_tokenizer

ROWS = dataset(split_problems(0).train, 64, 0)


def build_tokenizer():
    return train_tokenizer(text for row in ROWS for text in row.values())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("made")
    make_model(quick(), directory)
    return directory


def test_quick_makes_a_model_and_data_that_load(made):
    model = AutoModelForCausalLM.from_pretrained(made / "model")
    tokenizer = AutoTokenizer.from_pretrained(made / "model")
    rows = pq.read_table(made / "train.parquet").to_pylist()
    assert set(rows[0]) == {"question", "answer"}
    assert len(rows) == 256
    assert len(pq.read_table(made / "validation.parquet")) == 32
    assert len(greedy_answers(model, tokenizer, [row["question"] for row in rows[:3]], max_tokens=4)) == 3


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(made, tmp_path, capsys):
    for seed in (0, 1):
        make_model(quick(seed), tmp_path / str(seed))
    first, again, other = (path / "model" / "model.safetensors" for path in (made, tmp_path / "0", tmp_path / "1"))
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()
    assert "greedy accuracy of the base model" in capsys.readouterr().out


def test_what_decides_the_result_decides_the_key(monkeypatch):
    keys = {Recipe().key(), Recipe(seed=1).key(), quick().key(), quick(steps=0).key()}
    assert len(keys) == 4
    assert Recipe().key() in keys
    monkeypatch.setattr(recipe, "version", lambda package: f"{package} 0.0.1")
    assert Recipe().key() not in keys


def test_the_model_has_about_a_million_parameters():
    assert 0.5e6 < build_model(build_tokenizer(), seed=0).num_parameters() < 1.5e6


def test_labels_are_the_answer_and_its_end():
    tokenizer = build_tokenizer()
    tokens, labels = collate(tokenizer, [("Mia has 3 pens.", "#### 3"), ("Mia has 3 pens.", "3+4=7\n#### 7")])
    assert tokens.shape == labels.shape
    assert tokenizer.decode(labels[0][labels[0] >= 0]) == "#### 3<|end|>"
    assert tokenizer.decode(labels[1][labels[1] >= 0]) == "3+4=7\n#### 7<|end|>"
    assert torch.equal(tokens[labels >= 0], labels[labels >= 0])


def test_pre_training_lowers_the_loss():
    tokenizer, losses = build_tokenizer(), []
    model = build_model(tokenizer, seed=0)
    texts = ((row["question"], row["answer"]) for row in ROWS * 4)
    settings = Pretraining(steps=8, rows_per_step=16, warmup_steps=2)
    pretrain(model, tokenizer, texts, settings, lambda _, loss: losses.append(loss))
    assert losses[-1] < losses[0] - 0.5


def test_the_loss_of_a_step_is_the_mean_over_all_answer_tokens_whatever_their_style():
    tokenizer, losses = build_tokenizer(), []
    model = build_model(tokenizer, seed=0)
    texts = [(row["question"], row["answer"]) for row in ROWS[:6]] + [("Mia has 3 pens.", "#### 3")] * 5
    with torch.no_grad():
        expected = answer_loss(model, *collate(tokenizer, texts)).item()
    settings = Pretraining(steps=1, rows_per_step=len(texts), warmup_steps=1)
    pretrain(model, tokenizer, iter(texts), settings, lambda _, loss: losses.append(loss))
    assert abs(losses[0] - expected) < 1e-5


def test_the_learning_rate_warms_up_and_falls_to_nothing():
    settings = Pretraining(steps=110, warmup_steps=10)
    assert pretraining_rate_factor(0, settings) == 0.1
    assert pretraining_rate_factor(10, settings) == 1.0
    # Halfway down the cosine.
    assert abs(pretraining_rate_factor(60, settings) - 0.5) < 1e-9
    assert pretraining_rate_factor(110, settings) == 0.0


def test_the_result_is_what_the_last_line_states():
    assert stated_result("3*4=12\n12+5=17\n#### 17") == "17"
    assert stated_result("#### 17\n#### 18") == "18"
    assert stated_result("3*4=12") is None
    assert stated_result("#### 1 7") is None


def test_a_policy_is_cloned_as_its_script_asks_and_a_quick_one_in_as_few_steps():
    cloned = recipe.acting(Recipe(seed=3, threads=1), "ReachPictures")
    assert (cloned.seed, cloned.threads) == (3, 1)
    assert (
        cloned.pretraining == recipe.CLONING["ReachPictures"] != recipe.acting(Recipe(), "MetaWorldReach").pretraining
    )
    assert recipe.acting(quick(steps=2), "ReachPictures").pretraining == replace(cloned.pretraining, steps=2)
