"""Tiny reward models and judges."""

import pytest
import torch
from transformers import AutoTokenizer, Qwen3ForCausalLM

from rljob_worker.tiny.graders import JUDGE, REWARD_MODEL, make_graders, train_reward_model
from rljob_worker.tiny.make import make_model as make_tiny
from rljob_worker.tiny.problems import split_problems
from rljob_worker.tiny.recipe import Pretraining, quick


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("made")
    make_tiny(quick(steps=0), directory)
    return directory / "model"


@pytest.mark.slow
def test_the_console_says_what_graders_learned_and_nothing_else(model, tmp_path, capfd):
    make_graders(model, tmp_path, 0, 1, Pretraining(steps=1, rows_per_step=2))
    said = capfd.readouterr()
    (line,) = said.out.splitlines()
    assert line.startswith("reward model: the good answer is above the poor one in ") and said.err == ""
    assert {path.name for path in tmp_path.iterdir()} == {REWARD_MODEL, JUDGE}


def test_a_reward_model_begins_as_the_model_under_a_head_that_its_seed_draws(model):
    tokenizer, problems = AutoTokenizer.from_pretrained(model), split_problems(0, 32).train

    def begun(seed):
        return train_reward_model(
            model, tokenizer, problems, seed, Pretraining(0), lambda step, loss: None
        ).state_dict()

    one, again, other = begun(0), begun(0), begun(1)
    layers = Qwen3ForCausalLM.from_pretrained(model, dtype=torch.float32).model.state_dict()
    assert all(torch.equal(one[f"model.{name}"], layer) for name, layer in layers.items())
    assert one["score.weight"].shape == (1, 192)
    assert torch.equal(one["score.weight"], again["score.weight"])
    assert not torch.equal(one["score.weight"], other["score.weight"])


def test_a_reward_models_gradients_are_clipped(model):
    tokenizer, problems = AutoTokenizer.from_pretrained(model), split_problems(0, 32).train

    def trained(steps):
        settings = Pretraining(steps, rows_per_step=2, warmup_steps=0, weight_decay=0.0, max_grad_norm=0.0)
        return train_reward_model(model, tokenizer, problems, 0, settings, lambda step, loss: None).state_dict()

    begun, after_one = trained(0), trained(1)
    # clipped to a norm of 0, they move nothing
    assert all(torch.equal(after_one[name], weight) for name, weight in begun.items())
