import pytest

from rljob_worker.checkpoint.init_from import find_checkpoint, load_initial_weights
from rljob_worker.checkpoint.ownership import Owner, claim_run
from rljob_worker.checkpoint.tests.builders import committer
from rljob_worker.checkpoint.writer import RankFiles, RankPart
from rljob_worker.errors import InvalidJob, StorageError


class FakeEngine:
    """Writes its name; notes what it loads."""

    def __init__(self, name):
        self.name, self.loaded = name, []

    def copy_shards(self):
        return self

    def write(self, directory):
        directory.mkdir(parents=True)
        (directory / "__0_0.distcp").write_text(self.name)

    def load(self, directory, *, weights_only):
        self.loaded.append(((directory / "__0_0.distcp").read_text(), weights_only))


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
    engines = {name: FakeEngine(name) for name in ("old/actor", "old/judge")}
    load_initial_weights(run, engines)
    assert engines["old/actor"].loaded == [("actor 4", True)]
    assert engines["old/judge"].loaded == []


def test_a_checkpoint_can_be_named_itself(run):
    older, newer = sorted((run / "checkpoints").iterdir())
    assert (find_checkpoint(older), find_checkpoint(run)) == (older, newer)
    engines = {"old/critic": FakeEngine("new")}
    load_initial_weights(older, engines)
    assert engines["old/critic"].loaded == [("critic 2", True)]


def test_none_of_this_jobs_models_is_an_invalid_job_that_says_what_there_is(run):
    with pytest.raises(InvalidJob, match=r"holds \['old-actor', 'old-critic'\], none of this job's \['a/x', 'b/x'\]"):
        load_initial_weights(run, {"b/x": FakeEngine("new"), "a/x": FakeEngine("new")})


def test_a_group_that_trains_nothing_loads_nothing(run):
    load_initial_weights(run, {})


def test_what_is_no_run_and_no_checkpoint_is_an_invalid_job(tmp_path):
    for source in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InvalidJob, match=f"initFrom: {source} is neither a run .*give its path under models"):
            load_initial_weights(source, {})


def test_damaged_weights_are_not_begun_with(run):
    newest = find_checkpoint(run)
    (newest / "engines" / "old-critic" / "__0_0.distcp").write_text("critic 5")
    for source in (run, newest):
        with pytest.raises(StorageError, match="initFrom: .*old-critic/__0_0.distcp does not match its checksum"):
            load_initial_weights(source, {"old/actor": FakeEngine("new")})
