"""Tokenizers and engines that a worker loads."""

import numpy as np
import torch

from rljob_worker.engines.parallel.mesh import alone
from rljob_worker.engines.tests.builders import a_batch, write_model
from rljob_worker.runtime.setup.resources import base_models, train_engines, why_no_tokenizer
from rljob_worker.tests.documents import plan_of


def test_a_model_without_tokenizer_says_what_is_there_and_what_is_needed(tmp_path):
    assert "which holds nothing; it needs tokenizer.json" in why_no_tokenizer(str(tmp_path), OSError("x"))
    (tmp_path / "config.json").touch()
    assert f"{tmp_path}, which holds config.json;" in why_no_tokenizer(str(tmp_path), OSError("x"))


def test_a_name_that_nobody_knows_is_no_directory_and_not_on_the_hub():
    said = why_no_tokenizer("qwen/typo", OSError("We could not connect\nand more"))
    assert said.startswith("'qwen/typo' is not a directory next to the job's YAML")
    assert "We could not connect; correct the path" in said and "and more" not in said


def test_the_reference_of_an_adapted_actor_scores_with_the_actors_own_weights(tmp_path):
    path, cpu = write_model(tmp_path), torch.device("cpu")
    plan = plan_of(models=[{"name": "actor", "path": path, "adapter": {"rank": 2}}])
    scoring = [engine for engine in plan.engines if engine.kind == "Train"]
    trained = train_engines(plan, scoring, cpu, {engine.mesh: alone(cpu) for engine in scoring})
    engines = trained | base_models(plan, scoring, trained)
    assert set(trained) == {"actor"} and set(engines) == {"actor", "reference"}
    batch = a_batch([3, 5])
    before = engines["reference"].log_probs(batch).values
    assert np.array_equal(engines["actor"].log_probs(batch).values, before)
    with torch.no_grad():
        for parameter in engines["actor"].optimizer.parameters.values():
            parameter.fill_(0.5)
    assert not np.array_equal(engines["actor"].log_probs(batch).values, before)
    assert np.array_equal(engines["reference"].log_probs(batch).values, before)
