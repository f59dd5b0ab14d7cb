"""What the operator mounts into a pod is what its data buffer takes."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from rljob_api.planning.plan import GroupPlan
from rljob_operator.manifests import JobContext, pods, tls_secret
from rljob_operator.manifests.tests.builders import TWO_GROUPS, buffer_of, env_of, make_context, named
from rljob_worker.databuffer.links.credentials import TlsCredentials
from rljob_worker.databuffer.server.process import BufferSettings, settings_from
from rljob_worker.errors import InvalidJob


def mounted(context: JobContext, group: GroupPlan, host: int, place: Path) -> BufferSettings:
    """Settings of a data buffer in its pod, after a kubelet has written the files of its volumes."""
    (pod,) = (pod for pod in pods(context, 1) if pod["spec"]["hostname"] == f"small-{group.name}-{host}")
    secret = tls_secret(context, 1, datetime.now(UTC))
    place.mkdir()
    for item in named(pod["spec"]["volumes"], "tls")["secret"]["items"]:
        (place / item["path"]).write_text(secret["stringData"][item["key"]])
    (place / "plan.json").write_text(context.plan.canonical_json())
    (place / "token").write_text("secret")
    files = {
        "RLJOB_PLAN": str(place / "plan.json"),
        "RLJOB_TOKEN_FILE": str(place / "token"),
        "RLJOB_TLS_DIR": str(place),
    }
    environment = env_of(buffer_of(pod))
    assert set(files) <= set(environment)
    return settings_from(environment | files)


def test_a_data_buffer_takes_what_its_pod_mounts(tmp_path: Path) -> None:
    context = make_context(TWO_GROUPS, "dataBuffer={tls: true}")
    for group in context.plan.groups:
        for host in range(group.replicas):
            settings = mounted(context, group, host, tmp_path / f"{group.name}-{host}")
            assert isinstance(settings.credentials, TlsCredentials)


def test_a_pod_with_another_host_name_would_be_reported(tmp_path: Path) -> None:
    context = make_context(TWO_GROUPS, "dataBuffer={tls: true}")
    group = context.plan.groups[0]
    place = tmp_path / "pod"
    mounted(context, group, 0, place)
    environment = env_of(buffer_of(pods(context, 1)[1])) | {
        "RLJOB_PLAN": str(place / "plan.json"),
        "RLJOB_TOKEN_FILE": str(place / "token"),
        "RLJOB_TLS_DIR": str(place),
    }
    with pytest.raises(InvalidJob, match="is for train-0, .* and not for train-1, small-train-1.small.team.svc"):
        settings_from(environment)
