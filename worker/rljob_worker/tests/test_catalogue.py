"""What the catalogue promises is what the worker has, name by name."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from rljob_api.catalogue import stages
from rljob_api.catalogue.algorithms import AGGREGATIONS, ESTIMATORS, KL_ESTIMATORS, LOSSES
from rljob_api.catalogue.optimizers import OPTIMIZERS
from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES
from rljob_api.catalogue.services import SHIPPED
from rljob_api.catalogue.trackers import TRACKERS
from rljob_worker import algorithms, services
from rljob_worker.algorithms.policy_losses import PreparedPolicyLoss
from rljob_worker.engines.registry import TRAIN_ENGINES
from rljob_worker.services.models import MODELS
from rljob_worker.stages import STAGES
from rljob_worker.users_code.function import load_function


def test_every_stage_of_the_catalogue_has_a_class_and_no_other():
    assert set(STAGES) == set(stages.STAGES)


@pytest.mark.parametrize(
    "promised, registry",
    [
        (ESTIMATORS, algorithms.ADVANTAGES),
        (LOSSES, algorithms.POLICY_LOSSES),
        (KL_ESTIMATORS, algorithms.KL_ESTIMATORS),
        (AGGREGATIONS, algorithms.AGGREGATIONS),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_every_part_of_an_algorithm_is_registered(promised, registry):
    assert set(promised) == set(registry.names())


def test_a_loss_that_looks_at_the_whole_mini_batch_has_old_log_probs():
    losses = algorithms.POLICY_LOSSES
    whole = {name for name in losses.names() if isinstance(losses[name], PreparedPolicyLoss)}
    assert whole == {name for name, loss in LOSSES.items() if "old_log_probs" in loss.reads}


def test_the_engines_that_validation_lets_through_are_built():
    assert set(TRAIN_ENGINES) == {"FSDP", "Megatron"}
    assert set(ROLLOUT_ENGINES.built_in) == {"Transformers", "VLLM", "HTTP"}


@pytest.mark.parametrize(
    "function",
    [
        *(item.builder for item in ROLLOUT_ENGINES.built_in.values()),
        *(item.opener for item in TRACKERS.built_in.values()),
        *(item.unreachable for item in TRACKERS.built_in.values() if item.unreachable),
        *(item.rule for item in OPTIMIZERS.built_in.values()),
    ],
)
def test_what_the_catalogue_names_is_there(function):
    assert callable(load_function("the catalogue", function))


def test_what_engines_import_once_is_there():
    assert all(find_spec(item.preload) for item in ROLLOUT_ENGINES.built_in.values() if item.preload)


def test_every_application_of_the_catalogue_is_shipped():
    assert set(SHIPPED) == set(MODELS) == set(services.__all__)


LIGHT = (
    "rljob_api.loading.load",
    "rljob_api.planning.planner",
    "rljob_worker.cli.run",
    "rljob_worker.launcher.launching",
    "rljob_worker.databuffer.server.process",
    "rljob_worker.rewards.running.process",
    "rljob_worker.sandbox.guardian.guarding",
    "rljob_worker.sandbox.calls.serving",
    "rljob_worker.runtime.setup.environment",
)
HEAVY = ("torch", "transformers", "datasets", "kubernetes")


def test_light_processes_stay_light():
    """All in one process: what is not there after all of them no single one imports."""
    script = f"import sys, {', '.join(LIGHT)}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
