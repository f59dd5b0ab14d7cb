"""Parts of algorithms by name, those of a job included."""

import ast
import inspect
import sys
import types

import pytest

from rljob_api.catalogue import algorithms
from rljob_worker.algorithms import (
    ADVANTAGES,
    AGGREGATIONS,
    KL_ESTIMATORS,
    POLICY_LOSSES,
    VALUE_LOSSES,
    registry,
    resolve,
)
from rljob_worker.algorithms.policy_losses import ppo_clip_loss
from rljob_worker.algorithms.registry import Registry
from rljob_worker.errors import InvalidJob


def test_the_catalogue_of_the_api_is_what_is_registered():
    assert ADVANTAGES.names() == sorted(algorithms.ESTIMATORS)
    assert POLICY_LOSSES.names() == sorted(algorithms.LOSSES)
    assert KL_ESTIMATORS.names() == sorted(algorithms.KL_ESTIMATORS)
    assert AGGREGATIONS.names() == sorted(algorithms.AGGREGATIONS)


def test_names_of_the_catalogue():
    assert resolve(POLICY_LOSSES, "PPOClip") is ppo_clip_loss
    assert VALUE_LOSSES.names() == ["Clipped"]


def test_a_part_from_outside(monkeypatch):
    module = types.ModuleType("my_losses")
    module.softer = lambda tokens, options: None
    monkeypatch.setitem(sys.modules, "my_losses", module)
    assert resolve(POLICY_LOSSES, "my_losses:softer") is module.softer


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(InvalidJob, match=r"policy loss 'PPOClap' is unknown.*'PPOClip'"):
        resolve(POLICY_LOSSES, "PPOClap")


def test_a_missing_module_or_function_is_named(monkeypatch):
    with pytest.raises(InvalidJob, match="no module 'rljob_nowhere'"):
        resolve(POLICY_LOSSES, "rljob_nowhere:loss")
    with pytest.raises(InvalidJob, match="policy loss: rljob_nowhere.deep:loss .* no module 'rljob_nowhere'"):
        resolve(POLICY_LOSSES, "rljob_nowhere.deep:loss")
    with pytest.raises(InvalidJob, match=r"math has no 'loss'; did you mean|math has no 'loss'; it has acos"):
        resolve(POLICY_LOSSES, "math:loss")


def test_an_import_that_fails_inside_the_users_module_is_not_disguised(monkeypatch, tmp_path):
    (tmp_path / "rljob_user_loss.py").write_text("import rljob_not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidJob, match=r"No module named 'rljob_not_installed' at .*rljob_user_loss.py:1"):
        resolve(POLICY_LOSSES, "rljob_user_loss:loss")


def test_the_registry_knows_no_part_and_no_type_of_one():
    """Imports for types only are not edges to import-linter."""
    tree = ast.parse(inspect.getsource(registry))
    from_imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    of_the_worker = {node.module for node in from_imports if node.level or "rljob" in str(node.module)}
    assert of_the_worker == {"rljob_worker.errors", "rljob_worker.users_code.function"}


def test_one_name_one_part():
    things: Registry = Registry("thing")
    things.register("A")(len)
    with pytest.raises(AssertionError, match="two things are called A"):
        things.register("A")(max)
