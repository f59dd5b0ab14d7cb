"""The state of a run that a checkpoint holds."""

import pytest

from rljob_worker.checkpoint.manifest import directory_name
from rljob_worker.checkpoint.state import GroupState
from rljob_worker.checkpoint.writer import RankFiles, RankPart
from rljob_worker.data.listing import DataFile, DataIdentity
from rljob_worker.errors import BadData, StorageError
from rljob_worker.rundir.ownership import Owner

STATE = GroupState(
    {"sample": {"drawn": 7}}, "fingerprint of the data", 12.5, [["a.jsonl", 10, "1"], ["b.jsonl", 9, "1"]]
)


def saved(run_dir, state, rank):
    RankFiles(run_dir, Owner(1), "train", rank).write(4, RankPart.copy({}, state.to_json()))
    return run_dir / "checkpoints" / directory_name(4, Owner(1))


def test_a_group_reads_back_the_state_that_its_first_rank_saved(tmp_path):
    saved(tmp_path, STATE, 0)
    checkpoint = saved(tmp_path, GroupState({"sample": {"drawn": 8}}), 1)
    assert GroupState.read(checkpoint, "train") == STATE


def test_a_new_run_remembers_nothing_and_has_not_run_yet():
    assert GroupState() == GroupState({}, None, 0.0, [])


def test_a_group_that_was_not_there_before_is_refused(tmp_path):
    checkpoint = saved(tmp_path, STATE, 0)
    with pytest.raises(
        StorageError, match=f"{checkpoint} has no state of worker group 'trainers'; was the group renamed"
    ):
        GroupState.read(checkpoint, "trainers")


def test_other_data_than_the_run_began_with_are_refused(tmp_path):
    checkpoint = saved(tmp_path, STATE, 0)
    moved = (DataFile("elsewhere/a.jsonl", 19, "7"),)
    GroupState.read(checkpoint, "train").check_dataset(DataIdentity("fingerprint of the data", moved))
    with pytest.raises(BadData) as caught:
        now = (DataFile("a.jsonl", 10, "2"), DataFile("c.jsonl", 9, "1"))
        GroupState.read(checkpoint, "train").check_dataset(DataIdentity("another fingerprint", now))
    assert (
        "the training data has changed since the checkpoint was written: a.jsonl was written again (1, now 2), "
        "b.jsonl is gone, c.jsonl is new. " in str(caught.value)
    )


def test_the_same_files_in_other_shares_are_refused(tmp_path):
    checkpoint = saved(tmp_path, STATE, 0)
    state = GroupState.read(checkpoint, "train")
    same = DataIdentity("of other shares", tuple(DataFile(*file) for file in state.files))
    with pytest.raises(BadData, match="written: its files have not, but what is read of them has, or data.train"):
        state.check_dataset(same)


def test_a_checkpoint_without_files_is_compared_all_the_same():
    with pytest.raises(BadData, match="since the checkpoint was written. The order"):
        GroupState(dataset="before").check_dataset(DataIdentity("now", (DataFile("a", 1, "1"),)))


@pytest.mark.parametrize(("before", "now"), [(None, "read now"), ("read before", None), (None, None)])
def test_a_group_that_reads_no_data_has_none_to_compare(before, now):
    GroupState(dataset=before).check_dataset(DataIdentity(now))
