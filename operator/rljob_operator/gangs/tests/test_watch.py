"""What is kept of a Workload."""

from rljob_operator.gangs.watch import drop_pod_sets


def test_what_was_asked_for_is_not_kept() -> None:
    item = {"metadata": {"name": "x", "managedFields": [{}]}, "spec": {"podSets": [{}], "queueName": "q"}, "status": {}}
    drop_pod_sets(item)
    assert item == {"metadata": {"name": "x"}, "spec": {"queueName": "q"}, "status": {}}
