"""Engines that a worker loads."""

import numpy as np
import torch

from rljob_worker.engines.parallel.mesh import alone
from rljob_worker.engines.tests.builders import a_batch, write_model
from rljob_worker.runtime.setup.resources import base_models, train_engines
from rljob_worker.tests.documents import plan_of


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
