"""Stages that a job brings: what they return, and how they fail."""

import sys
import types

import numpy as np
import pytest

from rljob_api.pipeline.meshes import Mesh
from rljob_api.planning.plan import StagePlan
from rljob_worker.batch import Batch, Column
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.stages.user import UserStage
from rljob_worker.users_code.function import load_function

BATCH = Batch.build([0, 1], [0, 0], {"response_ids": Column.ragged([[1, 2], [3]])})


def stage(function, writes=("style",), monkeypatch=None, **options):
    module = types.ModuleType("users_module")
    module.run = function
    monkeypatch.setitem(sys.modules, "users_module", module)
    plan = StagePlan(
        name="mine",
        run="users_module:run",
        group="train",
        models=(),
        engines=(),
        mesh=Mesh(),
        after=(),
        reads=("response_ids",),
        writes=writes,
        needs_groups=False,
        balance="None",
        options=options,
    )
    return UserStage(plan, None)


def test_numbers_become_columns_and_metrics(monkeypatch):
    mine = stage(
        lambda batch, context, scale: {"style": batch["response_ids"].lengths * scale},
        monkeypatch=monkeypatch,
        scale=2.0,
    )
    result = mine.run(BATCH, None)
    assert result.batch["style"].values.tolist() == [4.0, 2.0]
    assert set(result.batch.columns) == {"style"}
    assert result.metrics["stage/mine/style"].value == 3.0


def test_lists_text_and_ragged_values_are_columns_too(monkeypatch):
    written = {"a": ["x", "y"], "b": [[1, 2], [3]], "c": Column.fixed(np.ones(2))}
    result = stage(lambda batch, context: written, ("a", "b", "c"), monkeypatch).run(BATCH, None)
    assert result.batch["a"].to_list() == ["x", "y"]
    assert result.batch["b"].lengths.tolist() == [2, 1]


@pytest.mark.parametrize(
    "returned, words",
    [
        ({"stile": [1, 2]}, r"returned \['stile'\], but the job declares writes: \['style'\]"),
        (None, "returned NoneType"),
        ({"style": [1.0]}, "column style has 1 values for 2 rows"),
    ],
)
def test_a_stage_is_held_to_what_it_declared(monkeypatch, returned, words):
    with pytest.raises(BadData, match=words):
        stage(lambda batch, context: returned, monkeypatch=monkeypatch).run(BATCH, None)


def test_an_exception_names_the_users_line(monkeypatch):
    def broken(batch, context):
        return 1 / 0

    with pytest.raises(BadData, match=r"stage mine: users_module:run raised ZeroDivisionError.*test_user.py:\d+"):
        stage(broken, monkeypatch=monkeypatch).run(BATCH, None)


def test_a_wrong_signature_is_found_before_the_first_step(monkeypatch):
    with pytest.raises(InvalidJob, match=r"cannot be called as \(batch, context\)"):
        stage(lambda batch: {}, monkeypatch=monkeypatch)
    with pytest.raises(InvalidJob, match="unexpected keyword argument 'scale'|got an unexpected"):
        stage(lambda batch, context: {}, monkeypatch=monkeypatch, scale=1)


def test_a_module_that_is_not_there_names_the_fix(monkeypatch):
    with pytest.raises(InvalidJob, match="put the file next to the job's YAML"):
        load_function("stage mine", "no_such_module:run")
