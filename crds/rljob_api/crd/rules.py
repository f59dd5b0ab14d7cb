"""CEL rules: what the API server itself refuses, with the message that `rljob run` has for the same mistake.

What CEL cannot say at a bounded cost (cycles, columns, whether the plan is possible) the operator says, as
Accepted=False.  A rule that is about one field of many says which by its field path, a rule about an entry stands at
the entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rljob_api.catalogue.stages import STAGES
from rljob_api.checks.names import MAX_NAME_LENGTH
from rljob_api.checks.options import NEVER_RETRIED
from rljob_api.crd.structural import Schema, schema_at
from rljob_api.lifetime.changes import ENDED, IMMUTABLE, LISTED, MUTABLE, MUTABLE_WHILE_SUSPENDED, RAISABLE
from rljob_api.v1alpha1.status import ENDED_PHASES
from rljob_api.vocabulary.keys import ACTOR, CRITIC, REFERENCE, ROLLOUT_GROUP


@dataclass(frozen=True)
class Rule:
    """One CEL expression that holds of a good job."""

    path: str
    """What `self` is."""
    cel: str
    message: str
    message_cel: str = ""
    """The message with names and numbers filled in; `message` stands in where it cannot be computed."""
    field: str = ""
    """The field below `path` that an error is shown at."""

    def to_schema(self) -> Schema:
        schema: Schema = {"rule": self.cel, "message": self.message}
        if self.message_cel:
            schema["messageExpression"] = self.message_cel
        if self.field:
            schema["fieldPath"] = f".{self.field}"
        return schema


def add_rules(schema: Schema) -> None:
    """Put every rule where it belongs."""
    for rule in (*RULES, ENDED_RULE, *immutability_rules(schema_at(schema, "spec"))):
        schema_at(schema, rule.path).setdefault("x-kubernetes-validations", []).append(rule.to_schema())


ENDED_RULE = Rule(
    "",
    f"!has(self.status) || !has(self.status.phase) || !(self.status.phase in {list(ENDED_PHASES)})"
    " || self.spec.stop.steps == oldSelf.spec.stop.steps",
    ENDED,
    field="spec.stop.steps",
)


def immutability_rules(spec: Schema, path: str = "") -> Iterator[Rule]:
    """One rule for every field that may not change: beside mutable ones field by field, elsewhere whole."""
    for name in schema_at(spec, path)["properties"]:
        place = f"{path}.{name}" if path else name
        if place in MUTABLE:
            continue
        if any(item.startswith(f"{place}.") for item in LISTED):
            yield from immutability_rules(spec, place)
        else:
            same = _unchanged(schema_at(spec, path), name, place)
            yield Rule("spec", _unless_allowed(place, same), IMMUTABLE, field=place)


def _unless_allowed(place: str, same: str) -> str:
    if place in MUTABLE_WHILE_SUSPENDED:
        return f"oldSelf.suspend || {same}"
    if place in RAISABLE:
        return f"{same} || self.{place} > oldSelf.{place} && {_RATE_KEPT}"
    return same


_RATE_KEPT = (
    "(self.training.schedule == 'Constant'"
    " || has(self.training.scheduleSteps) && self.stop.steps <= self.training.scheduleSteps)"
)


def _unchanged(holder: Schema, name: str, place: str) -> str:
    """CEL that compares a field with its old self; one that may be absent is compared in its absence, too.

    A null is as good as an absent field, which `==` of whole objects does not know: objects with fields that may be
    null are compared field by field.
    """
    field = holder["properties"][name]
    below = field.get("properties", {})
    if _has_nullable(field):
        same = " && ".join(_unchanged(field, item, f"{place}.{item}") for item in below)
    else:
        same = f"self.{place} == oldSelf.{place}"
    if name in holder.get("required", ()) or "default" in field:
        return same
    return f"(has(self.{place}) ? has(oldSelf.{place}) && {same} : !has(oldSelf.{place}))"


def _has_nullable(schema: Schema) -> bool:
    return any(item.get("nullable") or _has_nullable(item) for item in schema.get("properties", {}).values())


# Messages are put together by format(): the API server takes the cost of `+` over texts of unknown length as boundless.
_WORKERS = "g.replicas * g.accelerator.count"
_TRAINING = "self.training.parallelism"
_COPY = f"({_TRAINING}.tensor * {_TRAINING}.context * {_TRAINING}.pipeline)"
_ONE_GROUP = "size(self.workerGroups) == 1"
# Several groups and a dag: which stages run where follows from the stages, and is left to the operator.
_PLACES_KNOWN = f"({_ONE_GROUP} || !has(self.dag))"
_TRAINS = f"({_ONE_GROUP} || g.name != '{ROLLOUT_GROUP}')"
_GENERATES = f"({_ONE_GROUP} || g.name == '{ROLLOUT_GROUP}')"
_NO_TRAINING_COPIES = f"{_TRAINS} && {_WORKERS} % {_COPY} != 0"
_REPLICAS = f"{_TRAINING}.replicate"
_NO_EQUAL_REPLICAS = f"{_TRAINS} && {_WORKERS} % {_COPY} == 0 && {_WORKERS} % ({_COPY} * {_REPLICAS}) != 0"
_STAGES = f"({_REPLICAS} * {_TRAINING}.pipeline)"
_NO_EQUAL_EXPERTS = f"{_TRAINS} && {_WORKERS} % {_STAGES} == 0 && {_WORKERS} % ({_STAGES} * {_TRAINING}.expert) != 0"
_NO_ROLLOUT_COPIES = f"{_GENERATES} && g.accelerator.count % self.rollout.parallelism.tensor != 0"
# without stages the policies are those that play the agents
_HAS_AGENTS = "has(self.rollout.conversation) && size(self.rollout.conversation.agents) > 0"
# where the policy is whose copy it is the operator says
_DERIVED_MODEL = f"(m.startsWith('{REFERENCE}') || m.startsWith('{CRITIC}'))"
_UNKNOWN_MODEL = f"!{_DERIVED_MODEL} && !self.models.exists(o, o.name == m)"
_UNKNOWN_GROUP = "has(s.group) && !self.workerGroups.exists(g, g.name == s.group)"
_SOURCES = [stage.name for stage in STAGES.values() if stage.use == "Generates"]
_UNKNOWN_STAGE = "!self.stages.exists(o, o.name == a)"
_UNKNOWN_SUCCESS = "!self.workerGroups.exists(g, g.name == n)"
_RETRIED_IN_VAIN = ", ".join(str(int(code)) for code in NEVER_RETRIED)

_NAMES = (
    Rule(
        "",
        "!self.metadata.name.contains('.')",
        "a name is lower-case letters, digits and dashes, with a letter or digit at both ends",
        field="metadata.name",
    ),
    Rule(
        "",
        f"size(self.metadata.name) <= {MAX_NAME_LENGTH}",
        f"a name has at most {MAX_NAME_LENGTH} characters",
        f"'a name has at most {MAX_NAME_LENGTH} characters, this one has %d'.format([size(self.metadata.name)])",
        field="metadata.name",
    ),
)

_REFERENCES = (
    Rule(
        "spec",
        f"!self.successPolicy.groups.exists(n, {_UNKNOWN_SUCCESS})",
        "there is no such worker group",
        f"'there is no such worker group: %s'.format([self.successPolicy.groups.filter(n, {_UNKNOWN_SUCCESS})[0]])",
        field="successPolicy.groups",
    ),
    Rule(
        "spec",
        f"has(self.dag) || {_HAS_AGENTS} || self.models.exists(m, m.name == '{ACTOR}')",
        f"there is no model {ACTOR}",
        field="models",
    ),
    Rule(
        "spec",
        f"!has(self.dag) || !self.dag.stages.exists(s, s.models.exists(m, {_UNKNOWN_MODEL}))",
        "there is no such model",
        f"'there is no such model: %s'.format([self.dag.stages.map(s, s.models.filter(m, {_UNKNOWN_MODEL}))"
        ".filter(found, size(found) > 0)[0][0]])",
        field="dag.stages",
    ),
    Rule(
        "spec",
        f"!has(self.dag) || !self.dag.stages.exists(s, {_UNKNOWN_GROUP})",
        "there is no such worker group",
        f"'there is no such worker group: %s'.format([self.dag.stages.filter(s, {_UNKNOWN_GROUP})[0].group])",
        field="dag.stages",
    ),
    Rule(
        "spec",
        f"has(self.dag) || {_ONE_GROUP} || size(self.workerGroups) == 2"
        f" && self.workerGroups.exists(g, g.name == '{ROLLOUT_GROUP}')",
        f"with several groups the algorithm's own pipeline needs one that is named {ROLLOUT_GROUP}, and one other",
        field="workerGroups",
    ),
)

_DAG = (
    Rule(
        "spec.dag",
        f"!self.stages.exists(s, s.after.exists(a, {_UNKNOWN_STAGE}))",
        "there is no such stage",
        f"'there is no such stage: %s'.format([self.stages.map(s, s.after.filter(a, {_UNKNOWN_STAGE}))"
        ".filter(found, size(found) > 0)[0][0]])",
        field="stages",
    ),
    Rule("spec.dag.stages[]", "!(self.name in self.after)", "a stage cannot come after itself", field="after"),
    Rule("spec.dag", f"self.stages.exists(s, s.run in {_SOURCES})", "no stage makes rows", field="stages"),
    Rule("spec.dag", "self.stages.exists(s, s.run == 'UpdatePolicy')", "no stage updates a policy", field="stages"),
)

_SIZES = (
    Rule(
        "spec",
        f"!{_PLACES_KNOWN} || !self.workerGroups.exists(g, {_NO_TRAINING_COPIES})",
        "the workers of a group make no whole number of copies of the model",
        "'the workers of group %s make no whole number of copies of tensor %d x context %d%s'.format("
        f"[self.workerGroups.filter(g, {_NO_TRAINING_COPIES})[0].name, {_TRAINING}.tensor, {_TRAINING}.context,"
        f" {_TRAINING}.pipeline > 1 ? ' x pipeline %d'.format([{_TRAINING}.pipeline]) : ''])",
        field="workerGroups",
    ),
    Rule(
        "spec",
        f"!{_PLACES_KNOWN} || !self.workerGroups.exists(g, {_NO_EQUAL_REPLICAS})",
        "the copies of the model in a group do not divide into so many replicas",
        "'the copies of the model in group %s do not divide into %d replicas'.format("
        f"[self.workerGroups.filter(g, {_NO_EQUAL_REPLICAS})[0].name, {_REPLICAS}])",
        field="training.parallelism.replicate",
    ),
    Rule(
        "spec",
        f"!{_PLACES_KNOWN} || !self.workerGroups.exists(g, {_NO_EQUAL_EXPERTS})",
        "the workers of a group cannot share experts in equal runs",
        "'the workers of group %s cannot share experts in equal runs of %d'.format("
        f"[self.workerGroups.filter(g, {_NO_EQUAL_EXPERTS})[0].name, {_TRAINING}.expert])",
        field="training.parallelism.expert",
    ),
    Rule(
        "spec",
        f"!{_PLACES_KNOWN} || !self.workerGroups.exists(g, {_NO_ROLLOUT_COPIES})",
        "the workers of a pod make no whole number of copies of the generating model",
        "'the workers of a pod of group %s make no whole number of copies of tensor %d'.format("
        f"[self.workerGroups.filter(g, {_NO_ROLLOUT_COPIES})[0].name, self.rollout.parallelism.tensor])",
        field="workerGroups",
    ),
)

_ONE_OF = (
    Rule("spec.code", "has(self.configMap) != has(self.persistentVolumeClaim)", "code comes from exactly one place"),
    Rule(
        "spec.workerGroups[].topology",
        "!(has(self.preferred) && has(self.required))",
        "a topology is preferred or required, not both",
    ),
    Rule("spec.env[]", "has(self.value) != has(self.valueFrom)", "a variable has exactly one of value and valueFrom"),
    Rule(
        "spec.env[].valueFrom",
        "[has(self.secretKeyRef), has(self.configMapKeyRef), has(self.fieldRef), has(self.resourceFieldRef)]"
        ".filter(given, given).size() == 1",
        "a value comes from exactly one place",
    ),
)

_FAILURE_POLICY = (
    Rule(
        "spec.failurePolicy.rules[]",
        "size(self.onPodConditions) > 0 || size(self.onExitCodes) > 0",
        "the rule says nothing about when it holds",
    ),
    Rule(
        "spec.failurePolicy.rules[]",
        f"self.action != 'Restart' || !self.onExitCodes.exists(code, code in [{_RETRIED_IN_VAIN}])",
        f"codes {_RETRIED_IN_VAIN} mean that the job or its data is bad; a restart would end the same way",
        field="onExitCodes",
    ),
)

_ELASTIC = (
    Rule(
        "spec",
        "self.workerGroups.filter(g, has(g.elastic)).size() <= 1",
        "one worker group is elastic already, and spec.generators is the number of pods of one group",
        field="workerGroups",
    ),
    Rule(
        "spec.workerGroups[].elastic",
        "self.min <= self.max",
        "the most pods are fewer than the least",
        field="max",
    ),
    Rule(
        "spec.workerGroups[]",
        "!has(self.elastic) || self.replicas == 1",
        "the pods of an elastic group are as many as spec.generators says",
        field="replicas",
    ),
    Rule(
        "spec",
        "!has(self.generators) || self.workerGroups.exists(g, has(g.elastic))",
        "no worker group is elastic, so that each has the replicas that it says",
        field="generators",
    ),
    Rule(
        "spec",
        "!has(self.generators) || self.workerGroups.all(g, !has(g.elastic)"
        " || g.elastic.min <= self.generators && self.generators <= g.elastic.max)",
        "the elastic group cannot have so many pods",
        "'elastic group %s has from %d to %d pods'.format([self.workerGroups.filter(g, has(g.elastic))[0].name,"
        " self.workerGroups.filter(g, has(g.elastic))[0].elastic.min,"
        " self.workerGroups.filter(g, has(g.elastic))[0].elastic.max])",
        field="generators",
    ),
)

RULES = (*_NAMES, *_REFERENCES, *_DAG, *_SIZES, *_ONE_OF, *_FAILURE_POLICY, *_ELASTIC)
