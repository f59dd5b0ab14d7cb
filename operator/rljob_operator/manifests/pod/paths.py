"""Where things are inside a pod."""

from __future__ import annotations

from rljob_api.catalogue.profiles import RankTableSettings
from rljob_api.vocabulary import keys

PLAN_DIRECTORY = "/etc/rljob/plan"
PLAN_FILE = f"{PLAN_DIRECTORY}/{keys.PLAN_KEY}"
TOKEN_DIRECTORY = "/etc/rljob/token"
TOKEN_KEY = "token"
TOKEN_FILE = f"{TOKEN_DIRECTORY}/{TOKEN_KEY}"
TLS_DIRECTORY = "/etc/rljob/tls"
SOCKET_DIRECTORY = "/run/rljob"
SOCKET = f"{SOCKET_DIRECTORY}/buffer.sock"
ARENA = "/arena"
SPILL = "/spill"
CODE = "/code"
SCRATCH = "/tmp"
RUNS = f"{keys.WORKSPACE}/runs"


def rank_table_path(table: RankTableSettings) -> str:
    """The file that the vendor's stack fills."""
    return f"{table.mount_path}/{table.key}"
