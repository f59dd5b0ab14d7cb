"""One lane per worker, and what becomes of files that are not whole."""

import gzip
import json

from rljob_worker.runtime.figures import StepFigures
from rljob_worker.runtime.profiling.timeline import TIMELINE, Block, BlockRecorder, TimelineTrack, assemble, events_of
from rljob_worker.runtime.tests.gang import Gang, gang_plan


def trace_of(folder):
    return json.loads(gzip.decompress((folder / TIMELINE).read_bytes()))["traceEvents"]


def test_groups_are_processes_workers_threads_and_times_microseconds_since_the_first():
    train = TimelineTrack("train", 3, [Block("rows", 12.0, 12.5, {}), Block("step", 12.0, 14.0, {"forward": 1.5})])
    events = events_of([train, TimelineTrack("rollout", 0, [Block("step", 10.0, 11.0, {})])])
    assert [(e["name"], e["pid"], e["tid"], e["args"]["name"]) for e in events if e["ph"] == "M"] == [
        ("process_name", 0, 0, "rollout"),
        ("process_name", 1, 0, "train"),
        ("thread_name", 0, 0, "rollout/0"),
        ("thread_name", 1, 3, "train/3"),
    ]
    # the step before the rows that it begins with; 12.0 is 2 s after 10.0
    assert [(e["name"], e["pid"], e["tid"], e["ts"], e["dur"], e["args"]) for e in events if e["ph"] == "X"] == [
        ("step", 0, 0, 0.0, 1e6, {}),
        ("step", 1, 3, 2e6, 2e6, {"forward": 1.5}),
        ("rows", 1, 3, 2e6, 0.5e6, {}),
    ]


def test_blocks_are_noted_from_start_to_write(tmp_path):
    figures = StepFigures()
    recorder = BlockRecorder(figures, "train", 1)
    with figures.watched("before"):
        pass
    recorder.start()
    with figures.timed("update") as facts:
        facts["forward"] = 1.5
    recorder.write(tmp_path / "train-1")
    with figures.watched("after"):
        pass
    assemble(tmp_path)
    blocks = [(event["name"], event["args"]) for event in trace_of(tmp_path) if event["ph"] == "X"]
    assert blocks == [("update", {"forward": 1.5})]
    assert [path.name for path in tmp_path.iterdir()] == [TIMELINE]


def test_a_file_that_is_not_whole_is_warned_about(tmp_path, caplog):
    (tmp_path / "train-0.blocks.json").write_text('{"group": "train", "rank"')
    assemble(tmp_path)
    assert f"no timeline in {tmp_path}" in caplog.text


def test_the_lead_writes_one_timeline_of_each_step_that_is_asked_for(tmp_path):
    plan = gang_plan(stop={"steps": 4}, checkpoint={"everySteps": 4}, training={"profile": {"steps": [2, 4]}})
    ended = Gang(tmp_path, plan).run()
    assert [one.words.code for one in ended] == [0, 0, 0]
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == ["step-2", "step-4"]
    for step, more in ((2, ["weights"]), (4, ["checkpoint", "checkpoint_wait", "validation"])):
        events = trace_of(tmp_path / "profile" / f"step-{step}")
        for worker in range(3):
            names = {event["name"] for event in events if event["tid"] == worker and event["ph"] == "X"}
            assert names >= {f"step {step}", "learn: take rows", "learn", "learn: give rows", *more}
