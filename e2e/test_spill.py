"""Rows that find no room in memory go to a volume of the pod's own."""

from pathlib import Path

from e2e.jobs import ON_STORAGE, NamespaceJobs, metrics, small_spec

STAGES = '''
from pathlib import Path

TEXT = "ballast of row {}; "


def load(batch, context):
    """So much to each row that the rows of a pod are larger than the memory of its data buffer."""
    return {"ballast": [TEXT.format(row) * 10_000 for row in batch.row_ids]}


def weigh(batch, context):
    """Of rows that have come through the data buffers."""
    assert batch.values_of("ballast") == [TEXT.format(row) * 10_000 for row in batch.row_ids]
    on_disk = b"".join(path.read_bytes() for path in Path("/spill").iterdir())
    return {"on_disk": [float(TEXT.format(row).encode() * 100 in on_disk) for row in batch.row_ids]}
'''


def test_rows_go_to_the_pods_own_disk(jobs: NamespaceJobs, storage: Path) -> None:
    jobs.kubectl("create", "configmap", "my-code", f"--from-literal=ballast.py={STAGES}")
    stages = [
        {"name": "rollout", "run": "Rollout", "models": ["actor"]},
        {"name": "reward", "run": "Reward", "after": ["rollout"]},
        {"name": "load", "run": "ballast:load", "after": ["rollout"], "writes": ["ballast"]},
        {"name": "weigh", "run": "ballast:weigh", "after": ["load"], "reads": ["ballast"], "writes": ["on_disk"]}
        | {"balance": "Tokens"},
        {"name": "advantage", "run": "Advantage", "after": ["reward"]},
        {"name": "update", "run": "UpdatePolicy", "models": ["actor"], "after": ["advantage", "weigh"]}
        | {"balance": "Tokens"},
    ]
    group = {"name": "train", "replicas": 2, "accelerator": {"profile": "cpu", "count": 1}}
    spilling = {"memory": "1Mi", "spill": {"limit": "64Mi"}, "deadlineSeconds": 60}
    fields = {"workerGroups": [group], "dag": {"stages": stages}, "dataBuffer": spilling, "stop": {"steps": 2}}
    job = jobs.apply("spilling", small_spec(**fields, **ON_STORAGE, code={"configMap": "my-code"}))
    job.until_succeeded()
    shown = [row["stage/weigh/on_disk"] for row in metrics(storage, "spilling") if row["step"] > 0]
    assert shown == [1.0, 1.0]
