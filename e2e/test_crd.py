"""What a real API server makes of the CustomResourceDefinition: accepts, completes, refuses and says why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from e2e.cluster import KubeCluster
from e2e.cluster.commands import CommandFailed
from e2e.release import ensure_release
from rljob_api import job_from_object, parse_job
from rljob_api.crd.rules import RULES
from rljob_api.lifetime.changes import ENDED, IMMUTABLE
from rljob_api.loading.document import read_document
from rljob_api.loading.overrides import apply_overrides
from rljob_api.tests.builders import SMALL, TWO_GROUPS, dag
from rljob_api.v1alpha1.status import ENDED_PHASES

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.yaml"))
HOME = "rljob-crd"
SOMEBODY_ELSES = "managedBy=example.com/nobody"
ROLLOUT, UPDATE = "name: rollout, run: Rollout", "name: update, run: UpdatePolicy, after: [rollout]"


class Server:
    """kubectl in a namespace of its own."""

    def __init__(self, cluster: KubeCluster) -> None:
        self._cluster = cluster

    def kubectl(self, *words: str, input: str | None = None) -> str:
        return self._cluster.kubectl("-n", HOME, *words, input=input)

    def try_out(self, text: str) -> dict[str, object]:
        """The object as it would be stored."""
        result: dict[str, object] = json.loads(
            self.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", input=text)
        )
        return result

    def refusal(self, text: str) -> str:
        """Why the object is not taken."""
        with pytest.raises(CommandFailed) as caught:
            self.try_out(text)
        return str(caught.value)


@pytest.fixture(scope="module")
def server(cluster: KubeCluster) -> Iterator[Server]:
    """The definition comes from the chart; an operator is not needed."""
    ensure_release(cluster)
    cluster.kubectl("create", "namespace", HOME)
    yield Server(cluster)
    cluster.kubectl("delete", "namespace", HOME, "--wait=false")


def job(*overrides: str) -> str:
    """The small job with overrides, right or wrong."""
    data, problems = apply_overrides(read_document(SMALL).value, overrides)
    assert not problems
    return yaml.safe_dump(data)


def test_the_definition_is_established_and_structural(server: Server) -> None:
    result = json.loads(server.kubectl("get", "crd", "rljobs.rljob.dev", "-o", "json"))
    conditions = {item["type"]: item["status"] for item in result["status"]["conditions"]}
    assert (conditions["Established"], conditions["NamesAccepted"]) == ("True", "True")
    assert conditions.get("NonStructuralSchema", "False") == "False"
    assert "rljobs" in server.kubectl("api-resources", "--categories=all", "-o", "name")
    assert server.kubectl("get", "rlj").strip() == ""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_stored_as_the_job_that_rljob_run_takes(server: Server, path: Path) -> None:
    text = path.read_text()
    server.kubectl("apply", "--dry-run=server", "-f", str(path))
    stored = job_from_object(server.try_out(text))
    assert stored.spec == parse_job(text).spec


NULLS = ("scheduling={queue: null}", "stop={steps: 10, rewardAbove: null}", "dag=null", "code=null")


@pytest.mark.parametrize("verb", [("create",), ("apply",), ("apply", "--server-side")], ids=" ".join)
def test_a_null_is_as_good_as_an_absent_field(server: Server, verb: tuple[str, ...]) -> None:
    server.kubectl(*verb, "-f", "-", input=job(SOMEBODY_ELSES, *NULLS))
    stored = json.loads(server.kubectl("get", "rlj", "small", "-o", "json"))
    assert job_from_object(stored).spec == parse_job(job(SOMEBODY_ELSES)).spec
    server.kubectl("replace", "-f", "-", input=job(SOMEBODY_ELSES))
    server.kubectl("replace", "-f", "-", input=job(SOMEBODY_ELSES, *NULLS))
    with pytest.raises(CommandFailed, match="spec.stop.rewardAbove: Invalid value"):
        server.kubectl("replace", "-f", "-", input=job(SOMEBODY_ELSES, "stop={steps: 10, rewardAbove: 0.5}"))
    server.kubectl("delete", "rlj", "small")


def test_rows_may_be_made_by_a_stage_that_filters_them(server: Server) -> None:
    sample = dag("name: sample, run: Sample", "name: update, run: UpdatePolicy, after: [sample]")
    assert server.try_out(job(sample))["kind"] == "RLJob"


def test_policies_of_a_team_have_names_and_stages_may_name_their_copies(server: Server) -> None:
    models = "models=[{name: left, path: a}, {name: right, path: a}]"
    agents = "agents: [{name: solver, policy: left}, {name: checker, policy: right}], rounds: 1"
    team = f"rollout={{conversation: {{{agents}}}}}"
    assert server.try_out(job(models, team))["kind"] == "RLJob"
    stages = ["name: rollout, run: Rollout, models: [left, right]"]
    stages += ["name: values, run: Values, models: [critic_left, critic_right], after: [rollout]"]
    stages += ["name: ref, run: LogProbs, models: [reference_left, reference_right], after: [rollout]"]
    stages += ["name: update, run: UpdatePolicy, models: [left], after: [values, ref]"]
    assert server.try_out(job(models, team, dag(*stages)))["kind"] == "RLJob"
    assert "there is no model actor" in server.refusal(job(models, "rollout={conversation: {}}"))


def test_a_quantity_may_be_a_number(server: Server) -> None:
    stored = job_from_object(server.try_out(job("dataBuffer={memory: 1073741824}")))
    assert stored.spec.data_buffer.memory == "1073741824"


def elastic(*groups: str) -> str:
    """Worker groups beside one that trains."""
    return f"workerGroups=[{{name: train}}, {', '.join(f'{{{group}}}' for group in groups)}]"


MISTAKES = [
    (("!name", "a.b"), "metadata.name", "a name is lower-case letters, digits and dashes"),
    (("!name", "a" * 41), "metadata.name", "a name has at most 40 characters, this one has 41"),
    (("successPolicy={groups: [trains]}",), "spec.successPolicy.groups", "there is no such worker group: trains"),
    (("models=[{name: judge, path: x}]",), "spec.models", "there is no model actor"),
    ((dag(ROLLOUT, UPDATE + ", models: [actr]"),), "spec.dag.stages", "there is no such model: actr"),
    ((dag(ROLLOUT, UPDATE + ", group: trian"),), "spec.dag.stages", "there is no such worker group: trian"),
    (
        ("workerGroups=[{name: a}, {name: b}]",),
        "spec.workerGroups",
        "needs one that is named rollout, and one other",
    ),
    (
        (dag(ROLLOUT, "name: update, run: UpdatePolicy, after: [rolout]"),),
        "spec.dag.stages",
        "there is no such stage: rolout",
    ),
    (
        (dag(ROLLOUT, "name: update, run: UpdatePolicy, after: [rollout, update]"),),
        "spec.dag.stages[1].after",
        "a stage cannot come after itself",
    ),
    ((dag("name: update, run: UpdatePolicy"),), "spec.dag.stages", "no stage makes rows"),
    ((dag(ROLLOUT),), "spec.dag.stages", "no stage updates a policy"),
    (
        ("workerGroups=[{name: train, replicas: 3}]", "training={parallelism: {tensor: 2}}"),
        "spec.workerGroups",
        "the workers of group train make no whole number of copies of tensor 2 x context 1",
    ),
    (
        ("workerGroups=[{name: train, replicas: 6}]", "training={parallelism: {replicate: 4}}"),
        "spec.training.parallelism.replicate",
        "the copies of the model in group train do not divide into 4 replicas",
    ),
    (
        ("workerGroups=[{name: train, replicas: 2}]", "training={parallelism: {expert: 4}}"),
        "spec.training.parallelism.expert",
        "the workers of group train cannot share experts in equal runs of 4",
    ),
    (
        (*TWO_GROUPS, "rollout={parallelism: {tensor: 8}}"),
        "spec.workerGroups",
        "the workers of a pod of group rollout make no whole number of copies of tensor 8",
    ),
    (("code={}",), "spec.code", "code comes from exactly one place"),
    (
        ("workerGroups=[{name: train, topology: {preferred: rack, required: zone}}]",),
        "spec.workerGroups[0].topology",
        "a topology is preferred or required, not both",
    ),
    (("env=[{name: A}]",), "spec.env[0]", "a variable has exactly one of value and valueFrom"),
    (("env=[{name: A, valueFrom: {}}]",), "spec.env[0].valueFrom", "a value comes from exactly one place"),
    (
        ("failurePolicy={rules: [{action: Stop}]}",),
        "spec.failurePolicy.rules[0]",
        "the rule says nothing about when it holds",
    ),
    (
        ("failurePolicy={rules: [{onExitCodes: [64], action: Restart}]}",),
        "spec.failurePolicy.rules[0].onExitCodes",
        "a restart would end the same way",
    ),
    (
        (elastic("name: a, elastic: {min: 1, max: 2}", "name: rollout, elastic: {min: 1, max: 2}"),),
        "spec.workerGroups",
        "one worker group is elastic already",
    ),
    (
        (elastic("name: rollout, elastic: {min: 3, max: 2}"),),
        "spec.workerGroups[1].elastic.max",
        "the most pods are fewer than the least",
    ),
    (
        (elastic("name: rollout, replicas: 2, elastic: {min: 1, max: 2}"),),
        "spec.workerGroups[1].replicas",
        "the pods of an elastic group are as many as spec.generators says",
    ),
    (("generators=2",), "spec.generators", "no worker group is elastic"),
    (
        (elastic("name: rollout, elastic: {min: 1, max: 2}"), "generators=3"),
        "spec.generators",
        "elastic group rollout has from 1 to 2 pods",
    ),
]


STAGED = [
    (
        ("workerGroups=[{name: train, replicas: 3}]", "training={engine: Megatron, parallelism: {pipeline: 2}}"),
        "spec.workerGroups",
        "the workers of group train make no whole number of copies of tensor 1 x context 1 x pipeline 2",
    ),
    (
        (
            "workerGroups=[{name: train, replicas: 4}]",
            "training={engine: Megatron, parallelism: {pipeline: 2, expert: 4}}",
        ),
        "spec.training.parallelism.expert",
        "the workers of group train cannot share experts in equal runs of 4",
    ),
]
"""Rules that are broken above, of copies that pipeline stages share."""


def test_every_rule_is_broken_once_below() -> None:
    assert len(MISTAKES) == len(RULES)


@pytest.mark.parametrize(("overrides", "place", "words"), [*MISTAKES, *STAGED], ids=lambda item: str(item)[:40])
def test_a_mistake_is_refused_where_it_is_in_the_words_of_rljob_run(
    server: Server, overrides: tuple[str, ...], place: str, words: str
) -> None:
    if overrides[0] == "!name":
        refusal = server.refusal(SMALL.replace("name: small", f"name: {overrides[1]}"))
    else:
        refusal = server.refusal(job(*overrides))
    assert place in refusal
    assert words in refusal


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("stop.steps=0",), "spec.stop.steps: Invalid value: 0"),
        (("rollout.maxResponseTokens=many",), "spec.rollout.maxResponseTokens: Invalid value"),
        (("algorithm.name=GPRO",), "spec.algorithm.name: Unsupported value"),
        (("models=[{name: actor, path: a}, {name: actor, path: b}]",), "spec.models[1]: Duplicate value"),
        (("workerGroups=[{name: Train}]",), "spec.workerGroups[0].name: Invalid value"),
        (("dataBuffer={memory: lots}",), "spec.dataBuffer.memory: Invalid value"),
    ],
)
def test_a_wrong_value_is_refused_where_it_is(server: Server, overrides: tuple[str, ...], words: str) -> None:
    assert words in server.refusal(job(*overrides))


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        ("stop={stepz: 3}", "spec.stop.stepz"),
        ("learningRate=1.0e-6", "spec.learningRate"),
        ("workerGroups=[{name: train, template: {sepc: {}}}]", "spec.workerGroups[0].template.sepc"),
    ],
)
def test_a_misspelt_field_is_named_by_kubectl(server: Server, overrides: str, field: str) -> None:
    data = read_document(SMALL).value
    path, _, value = overrides.partition("=")
    data["spec"][path] = yaml.safe_load(value)
    assert f'strict decoding error: unknown field "{field}"' in server.refusal(yaml.safe_dump(data))


@pytest.fixture
def stored(server: Server) -> Iterator[Server]:
    """A job that no operator touches."""
    template = "workerGroups=[{name: train, template: {spec: {nodeSelector: {disk: ssd}}}}]"
    server.kubectl("create", "-f", "-", input=job(SOMEBODY_ELSES, template, "storage={persistentVolumeClaim: team}"))
    yield server
    server.kubectl("delete", "rlj", "small")


def patch(server: Server, spec: dict[str, object]) -> str:
    return server.kubectl("patch", "rlj", "small", "--type=merge", "-p", json.dumps({"spec": spec}))


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"seed": 1}, "spec.seed"),
        ({"managedBy": "rljob.dev/operator"}, "spec.managedBy"),
        ({"storage": None}, "spec.storage"),
        ({"code": {"configMap": "mine"}}, "spec.code"),
        ({"stop": {"steps": 1}}, "spec.stop.steps"),
        ({"stop": {"rewardAbove": 0.5}}, "spec.stop.rewardAbove"),
        ({"failurePolicy": {"rules": []}}, "spec.failurePolicy.rules"),
        ({"scheduling": {"priorityClassName": "high"}}, "spec.scheduling.priorityClassName"),
        (
            {"workerGroups": [{"name": "train", "template": {"spec": {"nodeSelector": {"disk": "hdd"}}}}]},
            "spec.workerGroups",
        ),
    ],
)
def test_what_does_not_change_is_refused_with_what_does(stored: Server, spec: dict[str, object], field: str) -> None:
    with pytest.raises(CommandFailed) as caught:
        patch(stored, spec)
    assert f"{field}: Invalid value" in str(caught.value)
    assert IMMUTABLE in str(caught.value)


def test_what_may_change_changes(stored: Server) -> None:
    patch(
        stored, {"lifecycle": {"stallSeconds": 5, "ttlSecondsAfterFinished": 60}, "failurePolicy": {"maxRestarts": 9}}
    )
    patch(stored, {"suspend": True})
    patch(stored, {"scheduling": {"priorityClassName": "high"}})
    patch(stored, {"suspend": False})
    patch(stored, {"stop": {"steps": 1000}})


@pytest.mark.parametrize("phase", ENDED_PHASES)
def test_a_job_that_has_ended_gets_no_more_steps(stored: Server, phase: str) -> None:
    body = json.dumps({"status": {"phase": phase}})
    stored.kubectl("patch", "rlj", "small", "--subresource=status", "--type=merge", "-p", body)
    with pytest.raises(CommandFailed) as caught:
        patch(stored, {"stop": {"steps": 1000}})
    assert "spec.stop.steps: Invalid value" in str(caught.value) and ENDED in str(caught.value)
    patch(stored, {"lifecycle": {"ttlSecondsAfterFinished": 60}})


def test_columns_and_words_for_people(stored: Server) -> None:
    status = {"phase": "Running", "ready": "1/1", "restarts": 2, "attempt": 3, "progress": {"step": 7, "reward": "0.5"}}
    body = json.dumps({"status": status, "spec": {"seed": 9}})
    stored.kubectl("patch", "rlj", "small", "--subresource=status", "--type=merge", "-p", body)
    header, row = stored.kubectl("get", "rlj").splitlines()
    assert header.split() == ["NAME", "PHASE", "STEP", "REWARD", "READY", "RESTARTS", "AGE"]
    assert row.split()[:-1] == ["small", "Running", "7", "0.5", "1/1", "2"]
    header, row = stored.kubectl("get", "rlj", "-o", "wide").splitlines()
    assert header.split()[6:11] == ["ATTEMPT", "SERVICES", "PROVIDER", "QUEUE", "ETA"]
    # the status is a subresource of its own
    assert stored.kubectl("get", "rlj", "small", "-o", "jsonpath={.spec.seed}") == "0"
    assert "Number of steps. Default 500." in stored.kubectl("explain", "rljob.spec.stop.steps")
