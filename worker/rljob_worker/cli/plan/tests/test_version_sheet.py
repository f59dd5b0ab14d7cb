"""Versions that exist at once, as a table."""

from rljob_api.memory.model_shape import parse_shape
from rljob_api.memory.tests.test_model_shape import QWEN3_8B
from rljob_worker.cli.plan.sheets import sheets_of
from rljob_worker.tests.documents import plan_of

TITLE = "Versions of weights, rollout.maxStaleness 2"
SHAPES = {"some/model": parse_shape(QWEN3_8B)}


def rows_of(shapes, staleness=2, **spec):
    groups = [("train", 1, 1), ("rollout", 1, 1)]
    buffer = {"memory": "2Ti"}
    plan = plan_of(groups=groups, rollout={"maxStaleness": staleness}, dataBuffer=buffer, **spec)
    return [row for sheet in sheets_of(plan, shapes) if sheet.title == TITLE for row in sheet.rows]


def arrival_of(shapes, profile="nvidia-h100", **spec):
    groups = [("train", 1, 1), ("rollout", 1, 1)]
    plan = plan_of(groups=groups, **spec)
    made = [group.model_copy(update={"profile": profile, "device": "cuda"}) for group in plan.groups]
    plan = plan.model_copy(update={"groups": tuple(made if profile else plan.groups)})
    return [row for sheet in sheets_of(plan, shapes) if sheet.title == "A version of weights" for row in sheet.rows]


def test_what_a_worker_takes_of_a_version_and_how_long_decoding_stands_still():
    """30.5 GiB over one link of 50 GB/s, of which weights have 0.6: 1.09 s; through the four slots of one source, each
    of 1.2 GB/s: 6.83 s; into the accelerator at 40 GB/s 0.82 s."""
    taken = ("weights/actor", "rollout", "30.5 GiB", "30.5 GiB")
    bound = "connections: more hosts that send"
    assert arrival_of(SHAPES) == [(*taken, "1.1 s", "6.8 s", "0.83 s", "stands still 6.8 s", bound)]
    ahead = {"rollout": {"maxStaleness": 1}, "dataBuffer": {"memory": "2Ti"}}
    (row,) = arrival_of(SHAPES, **ahead)
    assert row == (*taken, "1.1 s", "6.8 s", "0.83 s", "goes on until it is there, then stands still 0.83 s", bound)
    (row,) = arrival_of(SHAPES, **ahead, weightSync={"staging": "Device"})  # read and written at 2.5 TB/s: 26 ms
    assert row[-2] == "goes on until it is on the device, then stands still 0.034 s"
    assert arrival_of(SHAPES, profile="") == [(*taken, "–", "–", "–", "stands still", "–")]
    assert arrival_of({}) == []


def test_what_a_checkpoint_keeps_and_what_the_store_holds():
    # 8,190,735,360 parameters of 4 bytes are 30.5 GiB: two in a checkpoint, six in the store; an eighth of 2 TiB
    row = ("actor", "30.5 GiB", "2 versions, 61.0 GiB", "6 versions, 183.4 GiB", "train", "256.0 GiB")
    assert rows_of(SHAPES) == [row]


def test_a_checkpoint_that_keeps_no_version():
    ((_, _, kept, *_),) = rows_of(SHAPES, checkpoint={"versions": "Redraw"})
    assert kept == "nothing: checkpoint.versions is Redraw"


def test_models_of_unknown_size():
    ((_, one, kept, stored, *_),) = rows_of({})
    assert (one, kept, stored) == ("unknown: no config.json at hand", "2 versions", "6 versions")


def test_one_version_at_a_time_has_no_table():
    assert rows_of(SHAPES, staleness=0) == []
