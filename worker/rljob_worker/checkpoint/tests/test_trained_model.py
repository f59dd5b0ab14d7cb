"""A model path that is a run: the policy of its newest checkpoint, to score with."""

import pytest
import torch

from rljob_api.tests.builders import TWO_POLICIES, dag, make_plan, pipeline
from rljob_worker.checkpoint.tests.builders import committer
from rljob_worker.checkpoint.trained_model import trained_elsewhere, trained_model
from rljob_worker.checkpoint.writer import RankFiles, RankPart
from rljob_worker.engines.models.sources.mirror import with_mirrors
from rljob_worker.engines.registry import build_train_engine
from rljob_worker.engines.tests.builders import write_model
from rljob_worker.errors import InvalidJob, StorageError
from rljob_worker.rundir.ownership import Owner, claim_run
from rljob_worker.storage.tests.s3_server import s3_bucket
from rljob_worker.tests.documents import plan_of

CPU = torch.device("cpu")


def write_run(directory, path, **model):
    """A run whose actor's trained weights are 0.2 at step 2 and 0.4 at step 4."""
    plan = plan_of(models=[{"name": "actor", "path": path, **model}])
    directory.mkdir()
    (directory / "plan.json").write_text(plan.canonical_json())
    here = with_mirrors(plan, directory / "cache")
    engine = build_train_engine(here, here.engine("train/actor"), CPU)
    claim_run(directory, Owner(1))
    for step in (2, 4):
        with torch.no_grad():
            for parameter in engine.optimizer.parameters.values():
                parameter.fill_(step / 10)
        RankFiles(directory, Owner(1), "train", 0).write(step, RankPart.copy({"train/actor": engine}, {}))
        committer(directory, Owner(1)).commit(step, score=None)
    return directory


def reference_of(path, source):
    plan = plan_of(models=[{"name": "actor", "path": path}, {"name": "reference", "path": str(source)}])
    engine = plan.engine("reference")
    return build_train_engine(plan, engine, CPU, trained=trained_elsewhere(plan, engine))


def test_a_reference_may_be_the_policy_of_a_run_or_of_one_of_its_checkpoints(tmp_path):
    path = write_model(tmp_path / "model")
    run = write_run(tmp_path / "run", path)
    older = min((run / "checkpoints").iterdir())
    for source, value in ((run, 0.4), (older, 0.2)):
        reference = reference_of(path, source)
        assert reference.optimizer is None
        assert all(torch.equal(p, torch.full_like(p, value)) for p in reference.model.parameters())
    assert trained_model(path, "reference") is None and trained_model("Qwen/Qwen3-0.6B", "reference") is None


def test_a_run_may_have_begun_with_a_model_in_a_store(monkeypatch, tmp_path):
    path = write_model(tmp_path / "model")
    with s3_bucket("models", monkeypatch) as s3:
        for file in (tmp_path / "model").iterdir():
            s3.put(f"models/tiny/{file.name}", file.read_bytes())
        reference = reference_of(path, write_run(tmp_path / "run", "s3://models/tiny"))
    assert all(torch.equal(p, torch.full_like(p, 0.4)) for p in reference.model.parameters())


def test_what_is_damaged_or_no_whole_model_is_refused_by_name(tmp_path):
    path = write_model(tmp_path / "model")
    adapted = write_run(tmp_path / "adapted", path, adapter={"rank": 2})
    with pytest.raises(InvalidJob, match=r"adapted'.*trained an adapter.*export --merged"):
        reference_of(path, adapted)
    run = write_run(tmp_path / "run", path)
    shard = next(max((run / "checkpoints").iterdir()).rglob("*.distcp"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(StorageError, match=r"run': the checkpoint of step 4 is damaged"):
        reference_of(path, run)


def test_of_a_run_with_several_policies_a_model_is_the_one_of_its_name(tmp_path):
    plan = make_plan(*TWO_POLICIES, dag(*pipeline("left", "correct"), *pipeline("right", "short")))
    run = tmp_path / "run"
    run.mkdir()
    (run / "plan.json").write_text(plan.canonical_json())
    claim_run(run, Owner(1))
    RankFiles(run, Owner(1), "train", 0).write(1, RankPart.copy({}, {}))
    committer(run, Owner(1)).commit(1, score=None)
    result = trained_model(str(run), "right")
    assert result is not None and str(result.state).endswith("engines/train-right")
    with pytest.raises(InvalidJob, match="trained the policies left, right, and this model is called reference"):
        trained_model(str(run), "reference")
