"""Commits of a run, without engines."""

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.checkpoint.writer import Committer, RankFiles, RankPart

ONE_RANK = (("train", 0),)


def committer(run_dir, owner, ranks=ONE_RANK):
    """Waits for `ranks`; keeps the newest two checkpoints."""
    return Committer(run_dir, owner, "plan", ranks, keep_last=2, keep_best=0, deadline_seconds=TEST_TIMEOUT_SECONDS)


def commit(run_dir, owner, step):
    """The one rank saves, the lead commits; returns the checkpoint's directory."""
    RankFiles(run_dir, owner, "train", 0).write(step, RankPart.copy({}, {}))
    return committer(run_dir, owner).commit(step, score=None)
