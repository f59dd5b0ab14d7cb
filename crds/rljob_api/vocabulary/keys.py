"""Names that several parts must spell alike: the API group, environment variables, labels, model and stage
names."""

from __future__ import annotations

GROUP = "rljob.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "RLJob"
PLURAL = "rljobs"
SHORT_NAME = "rlj"
MANAGED_BY = f"{GROUP}/operator"

# Environment of a worker and of its data buffer.
ENV_PLAN = "RLJOB_PLAN"
ENV_GROUP = "RLJOB_GROUP"
ENV_HOST_INDEX = "RLJOB_HOST_INDEX"
ENV_ATTEMPT = "RLJOB_ATTEMPT"
ENV_PEERS = "RLJOB_PEERS"
ENV_BUFFER = "RLJOB_BUFFER"
ENV_TOKEN_FILE = "RLJOB_TOKEN_FILE"
ENV_TOKEN = "RLJOB_TOKEN"
"""The secret that the launchers of `rljob launch` share. No worker gets it."""
ENV_TLS_DIR = "RLJOB_TLS_DIR"
"""Where a data buffer finds its certificate; for a job with `dataBuffer.tls`."""
ENV_RUN_DIR = "RLJOB_RUN_DIR"
ENV_RUN_HOME = "RLJOB_RUN_HOME"
"""Folder of an object store that holds the run's checkpoints and says to whom it belongs. Unset: the run directory."""
ENV_CODE = "RLJOB_CODE"
"""Folders of the job's own Python modules, as in PATH; searched after everything that is installed."""
ENV_LOCAL_RANK = "RLJOB_LOCAL_RANK"
ENV_METRICS_PORT = "RLJOB_METRICS_PORT"
ENV_BUFFER_PORT = "RLJOB_BUFFER_PORT"
ENV_LISTEN = "RLJOB_LISTEN"
"""The address that a data buffer, or the host of services, listens on."""
ENV_ARENA_DIR = "RLJOB_ARENA_DIR"
"""Where data buffers share memory with their workers. Unset: SHARED_MEMORY. On one machine a user's choice."""
ENV_SPILL_DIR = "RLJOB_SPILL_DIR"
ENV_RESUME = "RLJOB_RESUME"
ENV_RUN_ID = "RLJOB_RUN_ID"
"""Which object owns the run directory: the job's uid. Unset on one machine, where a lock decides."""
ENV_CHECKPOINTS = "RLJOB_CHECKPOINTS"
"""`off` where the ranks' parts of a checkpoint would lie on different disks."""
ENV_REHEARSED = "RLJOB_REHEARSED"
ENV_SERVICES = "RLJOB_SERVICES"
"""Where the job's services answer: addresses by name, as JSON."""
ENV_SERVICES_TOKEN_FILE = "RLJOB_SERVICES_TOKEN_FILE"
"""The token that calls of the job's services carry."""
ENV_SERVICES_SCRATCH = "RLJOB_SERVICES_SCRATCH"
"""A folder with a short path for what Ray keeps while it runs."""
ENV_RANK_TABLE = "RLJOB_RANK_TABLE"
"""A file that must say `"status": "completed"` before workers start."""
ENV_RANK_TABLE_SECONDS = "RLJOB_RANK_TABLE_SECONDS"

OWN_ENVIRONMENT = frozenset(value for name, value in list(globals().items()) if name.startswith("ENV_"))
"""Variables by which a process knows who it is."""

OWN_PREFIX = "RLJOB_"
"""Prefix of every variable of ours; a job's `env` cannot set them, except those that change how a process works."""
BUFFER_RETRY_SECONDS = "RLJOB_BUFFER_RETRY_SECONDS"
BUFFER_START_SECONDS = "RLJOB_BUFFER_START_SECONDS"
BUFFER_FAN_OUT = "RLJOB_BUFFER_FAN_OUT"
BUFFER_ENVIRONMENT = frozenset({BUFFER_RETRY_SECONDS, BUFFER_START_SECONDS, BUFFER_FAN_OUT})
"""Variables of a job's `env` that its data buffers are given."""
ROLLOUT_SERVER_TOKEN = "RLJOB_ROLLOUT_SERVER_TOKEN"
"""The token that calls of `rollout.server` carry, where it asks for one."""
OPEN_ENVIRONMENT = BUFFER_ENVIRONMENT | {"RLJOB_FORK_WORKERS", ROLLOUT_SERVER_TOKEN}

RANK_ENVIRONMENT = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
"""By which other launchers tell a process its rank. Ours has another, and libraries that find these believe them."""

SHARED_MEMORY = "/dev/shm"

# Files of a data buffer's certificate, PEM.
TLS_AUTHORITY = "ca.crt"
TLS_CERTIFICATE = "tls.crt"
TLS_KEY = "tls.key"

PLAN_KEY = "plan.json"
"""Name of the plan: in a ConfigMap, in a run's directory."""

# Ports of a pod. Locally the system chooses them.
PORT_BUFFER = 8815
PORT_WORKER_METRICS = 9400
PORT_BUFFER_METRICS = 9401
PORT_SERVICE = 8816

# Containers of a pod.
CONTAINER_WORKER = "worker"
CONTAINER_BUFFER = "data-buffer"
CONTAINER_SERVICE = "service"
CONTAINER_AGENT = "agent"
COMPONENT_SERVICE_HEAD = "service-head"
"""The pod of a Ray that has no copy of a model."""

PATH_SERVICE_ALIVE = "/-/healthz"
"""Path of Ray Serve's proxy, for probes: whether it answers at all."""
PATH_SERVICE_HEALTHY = "/-/readyz"
"""Whether every application behind it is healthy."""

WORKSPACE = "/workspace"
"""Where a pod keeps data and results, and where relative paths of a job begin."""

# Labels of every child of a job.
LABEL_JOB = f"{GROUP}/job"
LABEL_GROUP = f"{GROUP}/group"
LABEL_HOST_INDEX = f"{GROUP}/host-index"
LABEL_ATTEMPT = f"{GROUP}/attempt"
LABEL_SERVICE = f"{GROUP}/service"
LABEL_AGENTS = f"{GROUP}/agents-of"
"""On pods of agents, in place of LABEL_JOB: a Deployment has them."""
LABEL_COMPONENT = f"{GROUP}/component"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGED_BY_VALUE = "rljob-operator"
ANNOTATION_TEMPLATE_HASH = f"{GROUP}/template-hash"
ANNOTATION_PLAN_HASH = f"{GROUP}/plan-hash"
ANNOTATION_GENERATOR_IMAGE = f"{GROUP}/generator-image"
"""On pods of the gang, in a job with an elastic group: the image of that group's workers, for those that come later."""
ANNOTATION_DELETION_GRACE = f"{GROUP}/deletion-grace-seconds"
"""What a pod has once its job is deleted: then no spec says it any more."""

# Names of models that stages use by default. `reference` and `critic` that nobody lists start as copies of
# the policy.
ACTOR = "actor"
REFERENCE = "reference"
CRITIC = "critic"

MAX_NAME = 32
"""Characters of the name of a stage, or of a reward."""

ROLLOUT_GROUP = "rollout"
"""Without a `dag`, the worker group of this name runs Rollout and Reward, and the other one everything
else."""
