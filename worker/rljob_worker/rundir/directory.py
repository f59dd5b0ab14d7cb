"""What is where in `runs/NAME/`, and the note that the supervisor keeps there about itself."""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from rljob_api.vocabulary import keys
from rljob_worker.errors import InvalidJob, StorageError
from rljob_worker.rundir.ownership import owner_of
from rljob_worker.storage.paths import StoragePath

LOCK_WAIT_SECONDS = 1.0
"""A `rljob status` holds the lock for the blink of an eye."""

METRICS = "metrics.jsonl"
HELD_REPORT = "held-report.json"
"""A step that is trained and still to be validated."""
SAMPLES = "samples.jsonl"
REPORT = "report.html"
SPILL = "spill"
RUNNING_PHASES = ("Starting", "Running", "Restarting", "Stopping")
CODE = "code-folder"


class RunLock:
    """`with RunLock(path): ...`; InvalidJob naming the other supervisor's pid when there is one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Self:
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + LOCK_WAIT_SECONDS
        while not _try_lock(self._fd):
            if time.monotonic() > deadline:
                owner = os.pread(self._fd, 32, 0).decode().strip() or "unknown"
                os.close(self._fd)
                raise InvalidJob(
                    f"{self._path.parent} is in use by process {owner}; wait for it, stop it with `kill {owner}`, "
                    "or give this run another name (`--set metadata.name=...`) or --runs-dir"
                )
            time.sleep(0.02)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)


def is_locked(path: Path) -> bool:
    """Whether a living supervisor has the directory."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not _try_lock(fd)
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class RunNote:
    """State of a run: written by its supervisor at every change, read by `rljob status` and the page."""

    name: str
    phase: str
    """Starting, Running, Restarting, Stopping, Succeeded, Stopped, Failed; Lost is what readers say of a dead one."""
    pid: int
    attempt: int
    """Number of the attempt, over all runs in this directory."""
    restarts: int
    started_seconds: float
    """Unix time of this `rljob run`."""
    updated_seconds: float
    total_steps: int
    exit_code: int | None = None
    cause: str = ""
    log: str = ""
    """Log of the process that explains the cause."""
    metrics_url: str = ""
    """Where Prometheus finds the lead's pod while the run is alive."""
    doing: str = ""
    """While it starts: what it does there."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> "RunNote":
        """Fields that this version does not know are passed over."""
        raw = json.loads(text)
        return RunNote(**{name: raw[name] for name in RunNote.__slots__ if name in raw})


class RunDirectory:
    """Paths of one run. Nothing is created before `prepare`."""

    def __init__(self, path: Path, home: StoragePath | None = None) -> None:
        """home: what holds checkpoints and says to whom the run belongs, where it is not this directory."""
        self.path = path.absolute()
        self.home = home or self.path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def job(self) -> Path:
        """The job as it runs, after `--set`; its relative paths begin here, so that it can be run again."""
        return self.path / "job.yaml"

    @property
    def code(self) -> Path:
        """Says where the modules of the job are, from here."""
        return self.path / CODE

    @property
    def plan(self) -> Path:
        return self.path / keys.PLAN_KEY

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def note(self) -> Path:
        return self.path / "run.json"

    @property
    def token(self) -> Path:
        return self.path / "token"

    @property
    def home_elsewhere(self) -> str:
        """As processes get it; empty: it is this directory."""
        return "" if self.home == self.path else str(self.home)

    @property
    def document(self) -> StoragePath:
        """The job that the checkpoints are of."""
        return self.home / self.job.name

    @property
    def checkpoints(self) -> StoragePath:
        return self.home / "checkpoints"

    @property
    def spill(self) -> Path:
        """Where rows go that do not fit in memory, if the job names no other directory."""
        return self.path / SPILL

    @property
    def metrics(self) -> Path:
        return self.path / METRICS

    @property
    def samples(self) -> Path:
        return self.path / SAMPLES

    @property
    def report(self) -> Path:
        """The page of the run."""
        return self.path / REPORT

    def logs(self, attempt: int) -> Path:
        """One file per process of the attempt."""
        return self.path / "logs" / f"attempt-{attempt}"

    def fork_log(self, pod: object) -> Path:
        """The log of the fork server on the machine whose first pod this is."""
        return self.path / "logs" / f"forkserver-{pod}.log"

    @property
    def supervisor_log(self) -> Path:
        return self.path / "logs" / "supervisor.log"

    def prepare(self, spills: bool = False) -> None:
        """Create the directory; StorageError when that is impossible. spills: whether rows may go to its disk."""
        try:
            for item in (self.path, self.checkpoints, self.supervisor_log.parent, *[self.spill] * spills):
                item.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"cannot create {self.path}: {error.strerror}; free space, fix permissions or choose another --runs-dir"
            ) from error

    def write(self, path: Path, text: str, mode: int = 0o644) -> None:
        """Write a small file whole: readers see the old or the new text."""
        partial = path.with_name(f".{path.name}.partial")
        try:
            fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with os.fdopen(fd, "w") as file:
                file.write(text)
            partial.replace(path)
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror}; free space or fix permissions") from error

    def read_note(self) -> RunNote | None:
        """The note, its phase Lost when its supervisor died without a word; None where no run is."""
        try:
            note = RunNote.from_json(self.note.read_text())
        except (OSError, ValueError, TypeError):
            return None
        if note.phase in RUNNING_PHASES and not is_locked(self.lock):
            return replace(note, phase="Lost")
        return note

    def last_attempt(self) -> int:
        """The highest attempt number that was ever used here, 0 for none."""
        note = self.read_note()
        return max(owner_of(self.home).attempt, note.attempt if note else 0)


def runs_in(directory: Path) -> Iterator[RunDirectory]:
    """Every run in a runs directory, by name."""
    if directory.is_dir():
        for path in sorted(directory.iterdir()):
            if (path / "run.json").is_file():
                yield RunDirectory(path)
