"""Weights from the checkpoint of another run."""

import pytest

from rljob_worker.checkpoint.init_from import find_checkpoint, initial_weights
from rljob_worker.checkpoint.tests.builders import committer
from rljob_worker.checkpoint.writer import RankFiles, RankPart
from rljob_worker.errors import InvalidJob, StorageError
from rljob_worker.rundir.ownership import Owner, claim_run


class FakeEngine:
    """Writes its name."""

    def __init__(self, name):
        self.name = name

    def copy_shards(self):
        return self

    def write(self, directory):
        directory.mkdir(parents=True)
        (directory / "__0_0.distcp").write_text(self.name)


@pytest.fixture
def run(tmp_path):
    """A run with checkpoints of an actor and a critic at steps 2 and 4."""
    owner = Owner(1)
    claim_run(tmp_path, owner)
    for step in (2, 4):
        engines = {f"old/{model}": FakeEngine(f"{model} {step}") for model in ("actor", "critic")}
        RankFiles(tmp_path, owner, "old", 0).write(step, RankPart.copy(engines, {}))
        committer(tmp_path, owner, (("old", 0),)).commit(step, score=None)
    return tmp_path


def test_a_run_gives_the_weights_of_its_newest_checkpoint_to_the_engines_it_has(run):
    _, newest = sorted((run / "checkpoints").iterdir())
    assert initial_weights(run, ["old/actor", "old/judge"]) == {"old/actor": newest / "engines" / "old-actor"}


def test_a_checkpoint_can_be_named_itself(run):
    older, newer = sorted((run / "checkpoints").iterdir())
    assert (find_checkpoint(older), find_checkpoint(run)) == (older, newer)
    assert initial_weights(older, ["old/critic"]) == {"old/critic": older / "engines" / "old-critic"}


def test_none_of_this_jobs_models_is_an_invalid_job_that_says_what_there_is(run):
    with pytest.raises(InvalidJob, match=r"holds \['old-actor', 'old-critic'\], none of this job's \['a/x', 'b/x'\]"):
        initial_weights(run, ["b/x", "a/x"])


def test_a_group_that_trains_nothing_loads_nothing(run):
    assert initial_weights(run, []) == {}


def test_what_is_no_run_and_no_checkpoint_is_an_invalid_job(tmp_path):
    for source in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InvalidJob, match=f"initFrom: {source} is neither a run .*give its path under models"):
            initial_weights(source, [])


def test_damaged_weights_are_not_begun_with(run):
    newest = find_checkpoint(run)
    (newest / "engines" / "old-critic" / "__0_0.distcp").write_text("critic 5")
    for source in (run, newest):
        with pytest.raises(StorageError, match="initFrom: .*old-critic/__0_0.distcp does not match its checksum"):
            initial_weights(source, ["old/actor"])
