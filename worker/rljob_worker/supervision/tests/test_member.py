"""Which pod a host of a launch runs."""

import pytest

from rljob_worker.errors import InvalidJob
from rljob_worker.supervision.hosts.membership import Membership
from rljob_worker.supervision.member import pod_at
from rljob_worker.tests.documents import plan_of


def test_a_launch_refuses_a_group_whose_pods_come_and_go():
    groups = [{"name": "train"}, {"name": "rollout", "elastic": {"min": 1, "max": 2}}]
    plan = plan_of(workerGroups=groups, rollout={"maxStaleness": 1})
    with pytest.raises(InvalidJob, match="worker group rollout is elastic, and a launch has the hosts"):
        pod_at(Membership(0, 1, "node0", 29500, ("node0",), "RLJOB_HOSTS"), plan)
