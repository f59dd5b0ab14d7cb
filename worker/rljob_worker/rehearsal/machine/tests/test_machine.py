"""What a machine has for workers, and for models beside them where it is the one that serves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rljob_api.planning.plan import Plan
from rljob_api.tests.builders import make_plan
from rljob_worker.databuffer.routes.hosts import hosts_of
from rljob_worker.rehearsal.machine.machine import findings_here

ON_AMD = {"profile": "amd", "count": 2}
"""Whose driver nobody looks for here."""


def served(profile: str) -> Plan:
    judge = {"name": "judge", "run": "mine:app", "workerGroup": {"accelerator": {"profile": profile}}}
    group = {"name": "train", "accelerator": ON_AMD}
    return make_plan(f"services={json.dumps([judge])}", f"workerGroups={json.dumps([group])}")


@pytest.mark.parametrize(
    ("profile", "serves", "paths"),
    [
        # workers take both that are visible
        ("amd", True, ["spec.services"]),
        ("amd", False, []),
        ("cpu", True, []),
    ],
)
def test_only_who_serves_needs_accelerators_for_models(
    tmp_path: Path, profile: str, serves: bool, paths: list[str]
) -> None:
    plan = served(profile)
    findings = findings_here(plan, hosts_of(plan), {"HIP_VISIBLE_DEVICES": "0,1"}, tmp_path, serves=serves)
    reported = [item.problem for item in findings if item.problem.path in ("spec.services", "spec.workerGroups")]
    assert [item.path for item in reported] == paths
    assert all('service "judge" wants 1 CUDA devices (profile amd) besides the 2' in str(item) for item in reported)
