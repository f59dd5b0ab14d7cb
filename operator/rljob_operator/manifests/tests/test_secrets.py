"""Tests of the Secrets with certificates."""

from datetime import UTC, datetime

from cryptography import x509

from rljob_api.vocabulary.agents_token import agents_token
from rljob_operator.manifests import child_problems, pods, tls_secret, token_secret
from rljob_operator.manifests.pod.resources import quota_requests
from rljob_operator.manifests.tests.builders import TWO_GROUPS, UID, buffer_of, env_of, make_context, named, worker_of

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
TLS = "dataBuffer={tls: true}"


def groups(replicas: int) -> str:
    return f"workerGroups=[{{name: train, replicas: {replicas}}}]"


def test_a_secret_of_an_attempt_holds_a_certificate_for_every_host():
    secret = tls_secret(make_context(TWO_GROUPS, TLS), 3, NOW)
    assert secret["metadata"]["name"] == "small-tls-a3" and secret["immutable"] is True
    assert secret["metadata"]["ownerReferences"][0]["uid"] == UID
    hosts = ["train-0", "train-1", "rollout-0", "rollout-1", "rollout-2", "rollout-3"]
    assert list(secret["stringData"]) == [
        "ca.crt",
        *(entry for host in hosts for entry in (f"{host}.crt", f"{host}.key")),
    ]
    certificate = x509.load_pem_x509_certificate(secret["stringData"]["rollout-3.crt"].encode())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [name.value for name in names] == ["rollout-3", "small-rollout-3.small.team.svc"]
    assert certificate.issuer.rfc4514_string() == "CN=rljob small attempt 3"


def test_a_pod_sees_its_own_key_of_its_own_attempt_and_only_the_data_buffer_does():
    pod = pods(make_context(TWO_GROUPS, TLS), 2)[1]
    assert named(pod["spec"]["volumes"], "tls")["secret"] == {
        "secretName": "small-tls-a2",
        "defaultMode": 0o440,
        "items": [
            {"key": "ca.crt", "path": "ca.crt"},
            {"key": "train-1.crt", "path": "tls.crt"},
            {"key": "train-1.key", "path": "tls.key"},
        ],
    }
    mount = {"name": "tls", "mountPath": "/etc/rljob/tls", "readOnly": True}
    assert named(buffer_of(pod)["volumeMounts"], "tls") == mount
    assert env_of(buffer_of(pod))["RLJOB_TLS_DIR"] == "/etc/rljob/tls"
    assert "tls" not in [item["name"] for item in worker_of(pod)["volumeMounts"]]
    assert "RLJOB_TLS_DIR" not in env_of(worker_of(pod))


def test_workers_that_serve_agents_of_other_pods_see_it_as_well():
    pool = "rollout.conversation={agentPool: {}, endpoint: {port: 9410, listen: Pods}}"
    worker = worker_of(pods(make_context(TWO_GROUPS, TLS, pool), 2)[1])
    mount = {"name": "tls", "mountPath": "/etc/rljob/tls", "readOnly": True}
    assert named(worker["volumeMounts"], "tls") == mount and env_of(worker)["RLJOB_TLS_DIR"] == "/etc/rljob/tls"


def test_without_tls_there_is_nothing_of_it():
    pod = pods(make_context(TWO_GROUPS), 1)[0]
    assert "tls" not in [item["name"] for item in pod["spec"]["volumes"]]
    assert "RLJOB_TLS_DIR" not in env_of(buffer_of(pod))


def test_a_thousand_hosts_fit_into_a_secret_and_more_are_refused_by_number():
    assert child_problems(make_context(groups(1024), TLS, "data.batchSize=1024")) == []
    (problem,) = child_problems(make_context(groups(2048), TLS, "data.batchSize=2048"))
    assert "spec.dataBuffer.tls: the certificates of 2048 hosts have about" in problem and "holds 1.0 MiB" in problem
    assert child_problems(make_context(groups(2048), "data.batchSize=2048")) == []


def test_what_is_not_refused_fits():
    """1130 hosts are about the most that `small` in namespace `team` may have."""
    context = make_context(groups(1130), TLS, "data.batchSize=1130")
    assert child_problems(context) == []
    assert 1_000_000 < sum(map(len, tls_secret(context, 1, NOW)["stringData"].values())) <= 1 << 20


def test_a_sidecar_with_an_agent_of_the_users_is_given_its_token_alone_and_counted():
    token = token_secret(make_context(), "the secret")["stringData"]
    assert token == {"token": "the secret", "agents-token": agents_token("the secret")}
    assert len(token["agents-token"]) == 64 and "the secret" not in token["agents-token"]
    agent = "{name: agent, image: mine, restartPolicy: Always, resources: {requests: {cpu: '2'}}}"
    with_agent = f"workerGroups=[{{name: train, template: {{spec: {{initContainers: [{agent}]}}}}}}]"
    (spec,) = (pod["spec"] for pod in pods(make_context(with_agent), 1))
    (alone,) = (pod["spec"] for pod in pods(make_context("workerGroups=[{name: train}]"), 1))
    assert [item["name"] for item in spec["initContainers"]] == ["data-buffer", "agent"]
    assert quota_requests(spec)["cpu"] == quota_requests(alone)["cpu"] + 2
