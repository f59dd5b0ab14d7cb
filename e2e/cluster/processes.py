"""Background processes that outlive the command that starts them, ended only if they still are what was started."""

import json
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.commands import environment

GONE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ProcessTable:
    """The processes of one cluster: `DIR/NAME.json` says which process is NAME, `LOGS/NAME.log` what it printed."""

    records: Path
    logs: Path

    def start(self, name: str, argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> int:
        """The new process's id; it leads its own session, reads nothing and prints to its log."""
        command = [str(word) for word in argv]
        program = shutil.which(command[0], path=environment()["PATH"])
        if program is None:
            raise FileNotFoundError(f"{name}: no program {command[0]}")
        self.records.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        log = os.open(self.logs / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, log, 1),
            (os.POSIX_SPAWN_DUP2, log, 2),
        ]
        try:
            # not subprocess: nobody waits for these, and an object that is dropped while they live is an error there
            pid = os.posix_spawn(program, command, environment(env), file_actions=files, setsid=True)
        finally:
            os.close(log)
        remember(self.record(name), pid, command)
        return pid

    def pid(self, name: str) -> int | None:
        """The process called `name`, or None when it has ended or its number now belongs to another."""
        return remembered(self.record(name))

    def stop(self, name: str, signum: signal.Signals = signal.SIGKILL) -> None:
        """Ends the process, if it still is the one that was started, and waits until it is gone."""
        pid = self.pid(name)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signum)
            wait_gone(pid)
        self.record(name).unlink(missing_ok=True)

    def names(self) -> list[str]:
        return sorted(path.stem for path in self.records.glob("*.json"))

    def ended(self) -> list[str]:
        """Those that were started, were not stopped, and run no longer."""
        return [name for name in self.names() if self.pid(name) is None]

    def log_tail(self, name: str, num_bytes: int = 2000) -> str:
        return tail(self.logs / f"{name}.log", num_bytes)

    def record(self, name: str) -> Path:
        return self.records / f"{name}.json"


def tail(log: Path, num_bytes: int = 2000) -> str:
    """The end of a file, empty where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - num_bytes))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def remember(record: Path, pid: int, command: Sequence[str]) -> None:
    record.write_text(json.dumps({"pid": pid, "started": start_time(pid), "command": command}))


def remembered(record: Path) -> int | None:
    """The process of a record, or None when it has ended or its number now belongs to another."""
    with suppress(FileNotFoundError):
        process = json.loads(record.read_text())
        started = start_time(process["pid"])
        if started is not None and started == process["started"]:  # that is None, too, where it ended at once
            return int(process["pid"])
    return None


def start_time(pid: int) -> int | None:
    """When a living process began, in clock ticks since boot; None for one that has ended, reaped or not.

    A number that now belongs to another process has another start. The command line would not do: it is empty until
    the kernel is through with the exec.
    """
    with suppress(FileNotFoundError, ProcessLookupError):
        # the name in parentheses may hold spaces; the state is the next field, the start the 20th from there
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    return None


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + GONE_SECONDS
    while start_time(pid) is not None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} still runs {GONE_SECONDS:.0f} s after its signal")
        time.sleep(0.02)
    with suppress(ChildProcessError):  # ours only if this very process started it
        os.waitpid(pid, 0)


def only_child(pid: int) -> int | None:
    with suppress(FileNotFoundError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
    return None
