"""Small jobs and their plans, for tests that run none."""

from rljob_api.planning.planner import plan
from rljob_api.v1alpha1 import RLJob


def job_document(name="tiny", *, groups=(), **spec):
    """A valid job as YAML would give it; `groups` are (name, replicas, workers per pod)."""
    document = {
        "models": [{"name": "actor", "path": "some/model"}],
        "data": {"train": [{"path": "some/data"}], "batchSize": 4},
        "rewards": [{"name": "correct", "run": "rewards:correct"}],
        "algorithm": {"name": "GRPO", "groupSize": 2},
        "stop": {"steps": 10},
    }
    if groups:
        document["workerGroups"] = [
            {"name": group, "replicas": replicas, "accelerator": {"count": count}} for group, replicas, count in groups
        ]
    metadata = {"name": name}
    return {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": metadata, "spec": document | spec}


def job(name="tiny", **options):
    return RLJob.model_validate(job_document(name, **options))


def plan_of(name="tiny", **options):
    return plan(job(name, **options))
