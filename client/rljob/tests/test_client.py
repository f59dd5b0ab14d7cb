"""Tests of the client: submitting a job with its code, and what it asks of the cluster."""

import base64

import pytest

from rljob import Client
from rljob.client import POLL_SECONDS, TIMEOUT_SECONDS
from rljob.errors import AlreadyThere, ClusterError, NotThere, Unreachable
from rljob.tests.builders import body, condition, pod
from rljob.tests.fake_api import JOBS, PODS
from rljob_api.vocabulary.problem import InvalidJobError

CONFIG_MAPS = "/api/v1/namespaces/team/configmaps"


@pytest.fixture
def client(kubeconfig):
    return Client(kubeconfig=kubeconfig)


def test_a_job_is_sent_as_it_was_written_and_checked_before(client, api, job_file):
    made = client.submit(job_file, overrides=["stop.steps=7"])
    assert (made.name, made.namespace, made.phase) == ("small", "team", "Pending")
    sent = api.objects[f"{JOBS}/small"]
    assert sent["spec"]["stop"] == {"steps": 7} and "lifecycle" not in sent["spec"]
    assert api.requests == [("POST", JOBS, {"fieldValidation": ["Strict"]})]
    with pytest.raises(InvalidJobError, match="stepps"):
        client.submit(job_file, overrides=["stop.stepps=7"])
    assert len(api.requests) == 1


def test_a_profile_of_the_clusters_own_is_left_to_its_operator(client, api, job_file):
    client.submit(job_file, overrides=["workerGroups=[{name: train, accelerator: {profile: ours, count: 1}}]"])
    assert api.objects[f"{JOBS}/small"]["spec"]["workerGroups"][0]["accelerator"]["profile"] == "ours"
    with pytest.raises(InvalidJobError, match="miniBatchRows"):
        profile = "workerGroups=[{name: train, accelerator: {profile: ours, count: 1}}]"
        client.submit(job_file, overrides=[profile, "training.miniBatchRows=-1"])


def test_code_goes_with_the_job_and_is_owned_by_it(client, api, job_file, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("x = 1")
    client.submit(job_file, code=tmp_path / "code")
    job = api.objects[f"{JOBS}/small"]
    name = job["spec"]["code"]["configMap"]
    packed = api.objects[f"{CONFIG_MAPS}/{name}"]
    assert base64.b64decode(packed["binaryData"]["mine.py"]) == b"x = 1" and packed["immutable"]
    assert packed["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]


@pytest.mark.parametrize("refused", ["configmaps", "rljobs"])
def test_neither_a_job_without_its_code_nor_code_without_a_job_is_left_behind(client, api, job_file, tmp_path, refused):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("x = 1")
    api.refuse, api.refuses = (403, f"user me cannot create {refused}"), refused
    with pytest.raises(ClusterError, match=f"cannot create {refused}"):
        client.submit(job_file, code=tmp_path / "code")
    assert api.objects == {}


def test_code_stays_where_the_answer_about_its_job_was_lost(client, api, job_file, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("x = 1")
    api.refuse, api.refuses = (504, "the server may have done it"), "rljobs"
    with pytest.raises(Unreachable):
        client.submit(job_file, code=tmp_path / "code")
    assert [path.rpartition("/")[0] for path in api.objects] == [CONFIG_MAPS]


def test_a_name_that_is_taken_says_what_to_do(client, job_file):
    client.submit(job_file)
    with pytest.raises(AlreadyThere, match=r"there is a job small in namespace team; delete it \(rljob delete small\)"):
        client.submit(job_file)


def test_jobs_are_listed_read_suspended_resumed_and_deleted(client, api):
    api.put(f"{JOBS}/old", body("old"))
    api.put(
        f"{JOBS}/new",
        body("new") | {"metadata": {"name": "new", "namespace": "team", "creationTimestamp": "2026-02-01T00:00:00Z"}},
    )
    assert [job.name for job in client.jobs()] == ["new", "old"]
    client.suspend("old")
    assert api.objects[f"{JOBS}/old"]["spec"] == {"stop": {"steps": 40}, "suspend": True}
    client.resume("old")
    assert api.objects[f"{JOBS}/old"]["spec"]["suspend"] is False
    client.delete("old")
    assert [job.name for job in client.jobs()] == ["new"]
    assert api.requests[-2][2] == {"propagationPolicy": ["Background"]}
    for act in (client.get, client.suspend, client.resume, client.delete, client.logs):
        with pytest.raises(NotThere, match="no job old in namespace team; there are: new"):
            act("old")


def test_following_shows_each_change_once_and_ends_with_the_job(kubeconfig, api):
    course = [{"phase": "Running"}, None, {"phase": "Running", "progress": {"step": 1}}, {"phase": "Succeeded"}]
    api.put(f"{JOBS}/small", body(phase="Pending"))

    def sleep(seconds):
        assert course, "followed after its end"
        status = course.pop(0)
        if status is not None:
            api.put(f"{JOBS}/small", {**api.objects[f"{JOBS}/small"], "status": status})

    seen = list(Client(kubeconfig=kubeconfig, sleep=sleep).follow("small"))
    assert [(job.phase, job.step) for job in seen] == [("Pending", 0), ("Running", 0), ("Running", 1), ("Succeeded", 0)]


def test_an_outage_is_waited_for_and_not_for_ever(kubeconfig, api):
    naps = []

    def sleep(seconds):
        naps.append(seconds)
        assert len(naps) <= 3 + TIMEOUT_SECONDS / POLL_SECONDS, "waits for ever"
        if len(naps) == 3:
            api.refuse = None
            api.put(f"{JOBS}/small", body(phase="Succeeded"))

    client = Client(kubeconfig=kubeconfig, sleep=sleep)
    api.refuse = (503, "etcd is down")
    assert [job.phase for job in client.follow("small")] == ["Succeeded"] and len(naps) == 3
    api.refuse = (503, "etcd is down")
    with pytest.raises(Unreachable, match="etcd is down"):
        next(client.follow("small"))
    assert len(naps) == 3 + TIMEOUT_SECONDS / POLL_SECONDS


def test_a_job_that_was_made_anew_is_another(kubeconfig, api):
    api.put(f"{JOBS}/small", body(phase="Running"))

    def sleep(seconds):
        assert api.objects[f"{JOBS}/small"]["metadata"]["uid"] != "another", "followed as if it were the first"
        old = api.objects.pop(f"{JOBS}/small")
        api.put(f"{JOBS}/small", {**old, "metadata": {**old["metadata"], "uid": "another"}})

    with pytest.raises(NotThere, match="deleted and made anew"):
        list(Client(kubeconfig=kubeconfig, sleep=sleep).follow("small"))


def test_logs_are_those_of_the_lead_of_the_attempt_that_runs(client, api):
    api.put(f"{JOBS}/small", body(phase="Running", attempt=2, planConfigMap="small-plan"))
    api.put(
        f"{CONFIG_MAPS}/small-plan",
        {"metadata": {"name": "small-plan"}, "data": {"plan.json": '{"leadGroup": "train"}'}},
    )
    for group, host, attempt in (("rollout", 0, 2), ("train", 0, 1), ("train", 0, 2), ("train", 1, 2)):
        name = f"{group}-{host}-{attempt}"
        api.put(f"{PODS}/{name}", pod(name, group, host, attempt))
        api.logs[f"{PODS}/{name}/log"] = f"of {name}\nsecond\nlast"
    assert list(client.logs("small")) == ["of train-0-2", "second", "last"]
    assert api.requests[-1][2] == {"container": ["worker"]}
    assert next(client.logs("small", group="rollout", follow=True)) == "of rollout-0-2"
    assert api.requests[-1][2] == {"container": ["worker"], "follow": ["true"]}
    assert next(client.logs("small", host=1)) == "of train-1-2"
    with pytest.raises(NotThere, match="job small has no pod train 5 in attempt 2; it is Running"):
        client.logs("small", host=5)


@pytest.mark.parametrize(
    ("refuse", "kind", "code"),
    [
        ((403, "user me cannot list rljobs"), ClusterError, 64),
        ((422, "spec.stop is immutable"), ClusterError, 64),
        ((429, "slow down"), Unreachable, 75),
        ((500, "boom"), Unreachable, 75),
    ],
)
def test_the_servers_message_is_reported(client, api, refuse, kind, code):
    api.refuse = refuse
    with pytest.raises(ClusterError, match=refuse[1]) as caught:
        client.jobs()
    assert type(caught.value) is kind and int(caught.value.exit_code) == code


def test_a_cluster_that_does_not_answer_is_named(kubeconfig):
    with pytest.raises(Unreachable, match="no answer from http://127.0.0.1:9"):
        Client("elsewhere", kubeconfig=kubeconfig).jobs()


def test_a_context_that_is_not_there_says_where_it_was_looked_for(kubeconfig, tmp_path):
    with pytest.raises(ClusterError, match="cannot log in to a cluster.*--context"):
        Client("nowhere", kubeconfig=kubeconfig)
    with pytest.raises(ClusterError, match="cannot log in to a cluster"):
        Client(kubeconfig=tmp_path / "absent")


def test_a_namespace_of_the_jobs_own_must_be_the_one_that_is_meant(kubeconfig, api, job_file):
    with pytest.raises(
        ClusterError, match=r"the job says metadata\.namespace other, and this is team; say --namespace other"
    ):
        Client(kubeconfig=kubeconfig).submit(job_file, overrides=["metadata.namespace=other"])
    assert Client(namespace="other", kubeconfig=kubeconfig).namespace == "other"


def test_a_cluster_without_rljob_says_how_it_gets_there(client, api, job_file):
    api.refuse = (404, "the server could not find the requested resource")
    with pytest.raises(NotThere, match=r"the cluster knows no RLJob, or there is no namespace team"):
        client.submit(job_file)


def test_the_most_important_condition_reaches_python(client, api):
    api.put(f"{JOBS}/small", body(conditions=[condition("Accepted", "False", "InvalidSpec", "no such model")]))
    assert client.get("small").message == "no such model"
