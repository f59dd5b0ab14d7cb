"""`Client`: the jobs of a cluster."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rljob.errors import AlreadyThere, ClusterError, NotThere, Unreachable
from rljob.job import Job
from rljob.packing import config_map, owned_by, packed_modules
from rljob.server import KubernetesServer, Object
from rljob_api.catalogue.profiles import DEFAULT
from rljob_api.loading.document import read_document
from rljob_api.loading.load import parse_job
from rljob_api.loading.overrides import apply_overrides
from rljob_api.vocabulary import keys
from rljob_api.vocabulary.problem import InvalidJobError

T = TypeVar("T")

POLL_SECONDS = 2.0
"""How often a job that is followed is looked at."""
TIMEOUT_SECONDS = 300.0
"""How long an API server that does not answer is asked again while a job is followed."""


class Client:
    """Jobs in one namespace of one cluster. Every method raises ClusterError."""

    def __init__(
        self,
        context: str | None = None,
        namespace: str | None = None,
        kubeconfig: str | Path | None = None,
        *,
        server: KubernetesServer | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """context: of the kubeconfig; its current one without. namespace: that of the context without. server: what to
        speak to instead."""
        if server is None:
            own = KubernetesServer(context, None if kubeconfig is None else Path(kubeconfig))
            namespace, server = namespace or own.namespace, own
        self.namespace = namespace or "default"
        self._server, self._sleep = server, sleep

    def submit(
        self, job: str | Path | Mapping[str, Any], *, code: str | Path | None = None, overrides: Iterable[str] = ()
    ) -> Job:
        """Check a job, its file or its object, and create it. code: a folder whose Python files go with it.

        Raises InvalidJobError with every problem before anything is sent.
        """
        body = dict(job) if isinstance(job, Mapping) else _checked(Path(job), tuple(overrides))
        modules = None if code is None else packed_modules(Path(code))
        body["metadata"] = {**body["metadata"], "namespace": self._namespace_of(body)}
        name = body["metadata"]["name"]
        code_name = f"{name}-code-{secrets.token_hex(4)}"
        if modules is not None:
            body["spec"] = {**body["spec"], "code": {"configMap": code_name}}
        packed = f"/api/v1/namespaces/{self.namespace}/configmaps"
        if modules is not None:  # first: a job whose code is refused would wait for it
            self._server.create(packed, config_map(code_name, self.namespace, modules))
        try:
            made = self._server.create(self._jobs, body)
        except ClusterError as error:
            if modules is not None and not isinstance(error, Unreachable):  # else the job may be there all the same
                self._server.delete(f"{packed}/{code_name}")
            raise self._explained(name, error) from None
        if modules is not None:
            self._server.merge(f"{packed}/{code_name}", {"metadata": {"ownerReferences": [owned_by(made)]}})
        return Job.read(made)

    def get(self, name: str) -> Job:
        """The job as it is now."""
        return Job.read(self._read(name))

    def jobs(self) -> list[Job]:
        """All jobs of the namespace, the newest first."""
        items = self._server.read(self._jobs)["items"]
        return sorted(map(Job.read, items), key=lambda job: job.created, reverse=True)

    def suspend(self, name: str) -> Job:
        """Have it write a checkpoint and give its pods back."""
        return self._edit(name, {"suspend": True})

    def resume(self, name: str) -> Job:
        """Let a suspended job go on from its checkpoint."""
        return self._edit(name, {"suspend": False})

    def delete(self, name: str) -> None:
        """Delete it with everything that was made for it; what it wrote to its storage stays."""
        self._at(name, self._server.delete)

    def follow(self, name: str) -> Iterator[Job]:
        """The job whenever it has changed, until it has ended or is suspended. Outages of minutes are waited for."""
        last: Job | None = None
        while True:
            job = self._patiently(lambda: self.get(name))
            if last is not None and job.uid != last.uid:
                raise NotThere(f"job {name} was deleted and made anew meanwhile")
            if last is None or job.version != last.version:
                yield job
            if job.has_ended or job.phase == "Suspended":
                return
            last = job
            self._sleep(POLL_SECONDS)

    def logs(self, name: str, *, follow: bool = False, group: str | None = None, host: int = 0) -> Iterator[str]:
        """Lines of the workers of one pod of the job's current attempt: those of the lead, or of a group's host."""
        body = self._read(name)
        chosen = group or self._lead_group(body)
        attempt = (body.get("status") or {}).get("attempt", 0)
        wanted = {keys.LABEL_JOB: name, keys.LABEL_ATTEMPT: str(attempt), keys.LABEL_HOST_INDEX: str(host)}
        wanted |= {keys.LABEL_GROUP: chosen} if chosen else {}
        selector = ",".join(f"{label}={value}" for label, value in wanted.items())
        pods = self._server.read(f"/api/v1/namespaces/{self.namespace}/pods", labelSelector=selector)["items"]
        if not pods:
            phase = Job.read(body).phase
            raise NotThere(f"job {name} has no pod {chosen or ''} {host} in attempt {attempt}; it is {phase}")
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pods[0]['metadata']['name']}/log"
        return self._server.lines(path, container=keys.CONTAINER_WORKER, **({"follow": "true"} if follow else {}))

    def _lead_group(self, body: Object) -> str | None:
        """The group whose first worker reports; None where there is no plan yet."""
        name = (body.get("status") or {}).get("planConfigMap")
        if not name:
            return None
        data = self._server.read(f"/api/v1/namespaces/{self.namespace}/configmaps/{name}")["data"]
        return str(json.loads(data[keys.PLAN_KEY])["leadGroup"])

    @property
    def _jobs(self) -> str:
        return f"/apis/{keys.GROUP}/{keys.VERSION}/namespaces/{self.namespace}/{keys.PLURAL}"

    def _read(self, name: str) -> Object:
        return self._at(name, self._server.read)

    def _at(self, name: str, act: Callable[[str], T]) -> T:
        """Do something at the path of a job; the error for an unknown name lists the known ones."""
        try:
            return act(f"{self._jobs}/{name}")
        except NotThere as error:
            there = ", ".join(job.name for job in self._known()) or "none"
            raise NotThere(f"no job {name} in namespace {self.namespace}; there are: {there}") from error

    def _known(self) -> list[Job]:
        try:
            return self.jobs()
        except ClusterError:
            return []

    def _edit(self, name: str, spec: Mapping[str, Any]) -> Job:
        return Job.read(self._at(name, lambda path: self._server.merge(path, {"spec": spec})))

    def _explained(self, name: str, error: ClusterError) -> ClusterError:
        """Why a job was not created, for the user who submits it."""
        if isinstance(error, AlreadyThere):
            return AlreadyThere(
                f"there is a job {name} in namespace {self.namespace}; delete it (rljob delete {name}), or give this "
                "one another name"
            )
        if isinstance(error, NotThere):
            return NotThere(
                f"the cluster knows no RLJob, or there is no namespace {self.namespace} ({error}); docs/kubernetes.md "
                "says how an administrator installs rljob"
            )
        return error

    def _namespace_of(self, body: Mapping[str, Any]) -> str:
        wanted = body["metadata"].get("namespace", self.namespace)
        if wanted != self.namespace:
            raise ClusterError(
                f"the job says metadata.namespace {wanted}, and this is {self.namespace}; say --namespace {wanted}"
            )
        return self.namespace

    def _patiently(self, ask: Callable[[], Job]) -> Job:
        for _ in range(int(TIMEOUT_SECONDS / POLL_SECONDS)):
            try:
                return ask()
            except Unreachable:
                self._sleep(POLL_SECONDS)
        return ask()


def _checked(path: Path, overrides: tuple[str, ...]) -> dict[str, Any]:
    """The object of a job's file, with overrides, as the user wrote it: defaults are the cluster's.

    A profile that is not built in may be one that the cluster's administrators added, so it is left to the operator.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterError(f"cannot read {path}: {error}") from error
    try:
        parse_job(text, overrides, DEFAULT)
    except InvalidJobError as error:
        if not all(problem.path.endswith(".accelerator.profile") for problem in error.problems):
            raise
    body, _ = apply_overrides(read_document(text).value, overrides)
    checked: dict[str, Any] = body
    return checked
