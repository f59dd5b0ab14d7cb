"""Which host this is, of how many, and where host 0 is, as the environment of the launchers says. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rljob_worker.errors import InvalidJob
from rljob_worker.supervision.hosts.nodelist import MAX_NODES, expanded

DEFAULT_PORT = 29_400
SLURM_FIRST_PORT, SLURM_NUM_PORTS = 20_000, 10_000
"""Two jobs that share a node have ports of their own; below those that systems choose from."""

_WAYS = (
    "start one launcher on each host: with `srun --ntasks-per-node=1 rljob launch ...` under Slurm; with RANK, "
    "WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; or with --rank-file FILE, a host on each line"
)
LINES = "write one name or address on each line, that of host 0 first"
_WITH_RANK = "it goes with RANK, which is: WORLD_SIZE says how many hosts there are, MASTER_ADDR where host 0 is"
_WITH_SLURM = "it goes with SLURM_PROCID, which is: start one launcher on each node with `srun --ntasks-per-node=1`"


@dataclass(frozen=True, slots=True)
class Membership:
    """A host's place among all of them."""

    host: int
    num_hosts: int
    address: str
    """Address of host 0: a name or an address."""
    port: int
    names: tuple[str, ...] = ()
    """Names of all hosts, where they are known before they come."""
    source: str = ""
    """Who has said how many there are."""

    def called(self, host: int) -> str:
        """`host 3 (gpu04)`."""
        return f"host {host} ({self.names[host]})" if self.names else f"host {host}"


def membership_of(environment: Mapping[str, str], hosts: Sequence[str], is_here: Callable[[str], bool]) -> Membership:
    """Raises InvalidJob that names the variable, or the line.

    hosts: of a rank file, none where there is none.  is_here: whether a name or an address is this machine's.
    """
    if hosts:
        return _from_hosts(environment, hosts, is_here)
    if environment.get("RANK"):
        return _from_torchrun(environment)
    if environment.get("SLURM_PROCID"):
        return _from_slurm(environment)
    raise InvalidJob(f"nobody says which host this is; {_WAYS}")


def hosts_in(text: str, path: str) -> tuple[str, ...]:
    """The lines of a rank file: a host's name or address each; `#` begins a comment. Raises InvalidJob."""
    result: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) > 1:
            raise InvalidJob(f"{path}, line {number}: {line.strip()!r}; write one name or address on a line")
        if words[0] in result:
            raise InvalidJob(
                f"{path}, line {number}: {words[0]} is on line {result[words[0]]} already; a host has one launcher, "
                "which starts a worker for each accelerator"
            )
        result[words[0]] = number
    if not result:
        raise InvalidJob(f"{path} names no host; {LINES}")
    return tuple(result)


def _from_hosts(environment: Mapping[str, str], hosts: Sequence[str], is_here: Callable[[str], bool]) -> Membership:
    mine = [number for number, name in enumerate(hosts) if is_here(name)]
    if not mine:
        raise InvalidJob(f"this machine is not in the rank file, by no name or address: {_few(hosts)}")
    if len(mine) > 1:
        both = ", ".join(hosts[number] for number in mine)
        raise InvalidJob(f"several lines of the rank file are this machine: {both}; leave one")
    port = _port(environment, DEFAULT_PORT)
    return Membership(mine[0], len(hosts), hosts[0], port, tuple(hosts), "the rank file")


def _from_torchrun(environment: Mapping[str, str]) -> Membership:
    if _number(environment, "LOCAL_WORLD_SIZE", 1) > 1:
        raise InvalidJob(
            f"LOCAL_WORLD_SIZE is {environment['LOCAL_WORLD_SIZE']}: a launcher starts the workers of its host itself; "
            "start one for each host (`--nproc-per-node=1`)"
        )
    size = _number(environment, "WORLD_SIZE")
    host = _number(environment, "RANK")
    address = _required(environment, "MASTER_ADDR")
    return _checked(Membership(host, size, address, _port(environment, DEFAULT_PORT), (), "WORLD_SIZE"), "RANK")


def _from_slurm(environment: Mapping[str, str]) -> Membership:
    size_name = "SLURM_STEP_NUM_TASKS" if environment.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    size, host = _number(environment, size_name), _number(environment, "SLURM_PROCID")
    list_name = "SLURM_STEP_NODELIST" if environment.get("SLURM_STEP_NODELIST") else "SLURM_JOB_NODELIST"
    names = expanded(_required(environment, list_name))
    if len(names) != size:
        raise InvalidJob(
            f"{size_name} is {size} and {list_name} has {len(names)} nodes ({_few(names)}): a launcher is for a whole "
            "node; start one on each with `srun --ntasks-per-node=1 rljob launch ...`"
        )
    own_port = SLURM_FIRST_PORT + _number(environment, "SLURM_JOB_ID", 0) % SLURM_NUM_PORTS
    address = environment.get("MASTER_ADDR") or names[0]
    return _checked(Membership(host, size, address, _port(environment, own_port), names, size_name), "SLURM_PROCID")


def _checked(membership: Membership, variable: str) -> Membership:
    if not 1 <= membership.num_hosts <= MAX_NODES:
        raise InvalidJob(f"{membership.source} is {membership.num_hosts}, expected 1 to {MAX_NODES:,} hosts")
    if membership.host >= membership.num_hosts:
        raise InvalidJob(
            f"{variable} is {membership.host} and {membership.source} is {membership.num_hosts}: hosts count from 0"
        )
    return membership


def _port(environment: Mapping[str, str], default: int) -> int:
    port = _number(environment, "MASTER_PORT", default)
    if not 0 < port < 65_536:
        raise InvalidJob(f"MASTER_PORT is {port}, expected a port from 1 to 65535")
    return port


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    if not environment.get(name) and default is not None:
        return default
    text = _required(environment, name)
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise InvalidJob(f"{name} is {text!r}, expected a whole number from 0")
    return int(text)


def _required(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise InvalidJob(f"{name} is not set; {_WITH_SLURM if name.startswith('SLURM') else _WITH_RANK}")
    return environment[name]


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
