"""What `rljob launch` refuses that other ways to run a job take."""

from __future__ import annotations

from rljob_api.tests.builders import make_job
from rljob_worker.cli.launch import unbuilt

SERVED = (
    "services=[{name: judge, run: my:app}]",
    "rewards=[{name: quality, run: my:reward, service: judge}]",
)


def test_services_are_refused_by_name() -> None:
    (found,) = unbuilt(make_job(*SERVED))
    assert found.path == "spec.services" and found.found == '"judge"' and "not built yet" in found.message
    assert list(unbuilt(make_job())) == []
