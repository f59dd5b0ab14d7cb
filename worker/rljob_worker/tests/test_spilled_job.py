"""A whole job whose rows find no room in memory: they go through files on disk, and what it learns is the same."""

import os
from pathlib import Path

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.tests.jobs import CPU, make_job, run_job

STAGES = '''
from pathlib import Path

TEXT = "ballast of row {}; "


def load(batch, context):
    """So much to each row that the rows of a rank are larger than the memory of its data buffer."""
    return {"ballast": [TEXT.format(row) * 10_000 for row in batch.row_ids]}


def weigh(batch, context):
    """Of rows that have come through the data buffers."""
    texts = batch.values_of("ballast")
    assert texts == [TEXT.format(row) * 10_000 for row in batch.row_ids]
    on_disk = b"".join(path.read_bytes() for path in Path(__file__).with_name("disk").iterdir())
    found = sum(TEXT.format(row).encode() * 100 in on_disk for row in batch.row_ids)
    with Path(__file__).with_name("found").open("a") as file:
        file.write(f"{context.step} {len(texts)} {found}\\n")
    return {"weight": [float(len(text)) for text in texts]}
'''
TWO_PODS = [{"name": "train", "replicas": 2, "accelerator": CPU}]


def run(tiny: Path, folder: Path, data_buffer: dict):
    folder.mkdir()
    (folder / "ballast.py").write_text(STAGES)
    (folder / "disk").mkdir()
    update = {"run": "UpdatePolicy", "models": ["actor"], "balance": "Tokens"}
    stages = [
        {"name": "rollout", "run": "Rollout", "models": ["actor"]},
        {"name": "reward", "run": "Reward", "after": ["rollout"]},
        {"name": "load", "run": "ballast:load", "after": ["rollout"], "writes": ["ballast"]},
        {"name": "weigh", "run": "ballast:weigh", "after": ["load"], "balance": "Tokens"}
        | {"reads": ["ballast"], "writes": ["weight"]},
        {"name": "advantage", "run": "Advantage", "after": ["reward"]},
        {"name": "update", "after": ["advantage", "weigh"], **update},
    ]
    job = make_job(
        tiny,
        workerGroups=TWO_PODS,
        dag={"stages": stages},
        dataBuffer=data_buffer | {"deadlineSeconds": int(TEST_TIMEOUT_SECONDS)},
    )
    done = run_job(job, folder)
    assert done.code == 0, done.output + done.logs
    result = [tuple(map(int, line.split())) for line in (folder / "found").read_text().splitlines()]
    return done, result


def learnt(run):
    """All that is not a matter of time or of bytes on the way."""
    varies = ("time/", "throughput/", "data/", "memory/", "process/")
    return [{name: value for name, value in step.items() if not name.startswith(varies)} for step in run.metrics]


@pytest.mark.slow
def test_a_job_learns_the_same_when_its_rows_go_to_disk(tiny, tmp_path):
    in_memory, none = run(tiny, tmp_path / "memory", {"memory": "32Mi"})
    disk = {"limit": "64Mi", "directory": str(tmp_path / "disk" / "disk")}
    on_disk, all_of_them = run(tiny, tmp_path / "disk", {"memory": "1Mi", "spill": disk})
    assert learnt(on_disk) == learnt(in_memory) and on_disk.metrics[2]["update/gradient_norm"] > 0
    # two steps of two ranks with 8 rows each
    assert [(rows, result) for _, rows, result in none] == [(8, 0)] * 4
    assert [(rows, result) for _, rows, result in all_of_them] == [(8, 8)] * 4
    assert os.listdir(tmp_path / "disk" / "disk") == []
