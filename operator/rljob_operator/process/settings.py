"""`Settings`: everything that an administrator may set, read from one YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from rljob_api.vocabulary.model import ApiModel, Items
from rljob_operator.manifests.ceilings import Ceilings
from rljob_operator.manifests.settings import PodSettings


class ApiSettings(ApiModel):
    """How the operator treats the API server."""

    requests_per_second: float = Field(default=50.0, gt=0)
    """Requests per second on average, over everything but watches and the Lease."""

    burst: int = Field(default=100, ge=1)
    """Requests that may be sent at once after a quiet time."""

    timeout_seconds: float = Field(default=30.0, gt=0)
    """Longest wait for one answer."""

    attempts: int = Field(default=5, ge=1)
    """How often a request is sent before it counts as failed: after 429, 5xx, a time-out, a lost connection."""

    watch_silence_seconds: float = Field(default=90.0, gt=0)
    """A watch without any event or bookmark for so long is reopened; the server sends a bookmark each minute."""

    relist_seconds: float = Field(default=300.0, gt=0)
    """How often everything watched is listed afresh, against events that were missed."""


class LeaseSettings(ApiModel):
    """Leader election among replicas; the numbers are those of Kubernetes' own controllers."""

    enabled: bool = True
    """Off: this process is the only one, as on a developer's machine."""

    name: str = "rljob-operator"
    """The Lease object."""

    namespace: str = ""
    """Where it is. Empty: the operator's own namespace."""

    duration_seconds: int = Field(default=15, ge=1)
    """A leader silent for so long is replaced."""

    renew_deadline_seconds: float = Field(default=10.0, gt=0)
    """A leader that cannot renew for so long ends its process."""

    retry_seconds: float = Field(default=2.0, gt=0)
    """How often the leader renews, and a standby looks."""


class QueueSettings(ApiModel):
    """How jobs are worked on."""

    workers: int = Field(default=10, ge=1)
    """Jobs reconciled at once."""

    settle_seconds: float = Field(default=0.2, ge=0)
    """How long more changes of a job's pods are waited for after the first: a thousand pods change at once."""

    first_retry_seconds: float = Field(default=0.5, gt=0)
    """Wait after the first failure of a job's reconcile; doubles with each further one."""

    last_retry_seconds: float = Field(default=120.0, gt=0)
    """Longest wait between failures."""

    resync_seconds: float = Field(default=300.0, gt=0)
    """How often all jobs are listed, and those looked at that changed without an event."""

    heal_seconds: float = Field(default=30.0, gt=0)
    """How often a living job's plan, Service, NetworkPolicy and PodMonitor are compared with what they should be, and
    how soon what the cluster refused is asked for again."""

    stop_seconds: float = Field(default=10.0, gt=0)
    """How long reconciles that are under way may take to finish when the operator stops."""


class ProgressSettings(ApiModel):
    """How progress is pulled from pods."""

    interval_seconds: float = Field(default=10.0, gt=0)
    """How often a running job is asked."""

    timeout_seconds: float = Field(default=2.0, gt=0)
    """Longest wait for an answer."""

    concurrency: int = Field(default=32, ge=1)
    """Jobs asked at once."""


class ProbeSettings(ApiModel):
    """When the operator calls itself unhealthy."""

    watch_silence_seconds: float = Field(default=300.0, gt=0)
    """Without any watch activity for so long, an API read decides."""

    queue_oldest_seconds: float = Field(default=600.0, gt=0)
    """A job that waits for so long means that no worker moves."""

    loop_lag_seconds: float = Field(default=5.0, gt=0)
    """The event loop may be late by so much."""


class OperatorSettings(ApiModel):
    """The operator's settings.  Every field has a default; an unknown one is an error."""

    namespaces: Items[str] = ()
    """Namespaces whose jobs are run. Empty: all, which needs cluster-wide rights."""

    api: ApiSettings = ApiSettings()
    """The API server."""

    lease: LeaseSettings = LeaseSettings()
    """Leader election."""

    queue: QueueSettings = QueueSettings()
    """The work queue."""

    progress: ProgressSettings = ProgressSettings()
    """The jobs' progress."""

    probes: ProbeSettings = ProbeSettings()
    """The operator's own health."""

    bind_address: str = ""
    """Address of both ports below. Empty: every one of the pod."""

    probe_port: int = Field(default=8080, ge=0, le=65535)
    """Serves /healthz and /readyz. 0: the system chooses."""

    metrics_port: int = Field(default=9402, ge=0, le=65535)
    """Serves /metrics. 0: the system chooses."""

    log_format: Literal["Text", "Json"] = "Text"
    """One line of text, or one JSON object, per log record."""

    log_level: Literal["Debug", "Info", "Warning", "Error"] = "Info"
    """The least important records that are written."""

    pods: PodSettings = PodSettings()
    """What the pods of every job are like."""

    ceilings: Ceilings = Ceilings()
    """What no job goes beyond."""

    profiles: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Accelerator profiles, by name: new ones, or fields to change in those that come with rljob."""


class BadSettings(ValueError):
    """The settings file cannot be used; the message names the file, the field, and what is wrong with it."""


def load_settings(path: Path | None) -> OperatorSettings:
    """The settings in `path`, or the defaults when there is no file to read."""
    if path is None:
        return OperatorSettings()
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return OperatorSettings.model_validate(content or {})
    except OSError as error:
        raise BadSettings(f"{path}: {error.strerror}; give --config a readable file") from error
    except yaml.YAMLError as error:
        raise BadSettings(f"{path}: not YAML: {error}") from error
    except ValidationError as error:
        raise BadSettings("\n".join(f"{path}: {line}" for line in _lines(error))) from error


def _lines(error: ValidationError) -> list[str]:
    return [f"{'.'.join(map(str, entry['loc'])) or 'settings'}: {entry['msg']}" for entry in error.errors()]
