"""Running other programs: the answer, or an error that shows what they said."""

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

# containerd, ip and nft live here; an ordinary user's PATH lacks them
SYSTEM_PATH = "/usr/sbin:/sbin"


class CommandFailed(RuntimeError):
    """A program exited with an error; the message holds the end of what it printed."""


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    path = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    return {**os.environ, "PATH": f"{path}:{SYSTEM_PATH}", **(extra or {})}


def run(
    *argv: str | Path,
    input: bytes | str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_seconds: float | None = None,
) -> str:
    """Standard output of a program that exits with 0."""
    words = [str(word) for word in argv]
    data = input.encode() if isinstance(input, str) else input
    done = subprocess.run(
        words, input=data, env=environment(env), cwd=cwd, timeout=timeout_seconds, capture_output=True, check=False
    )
    if done.returncode != 0:
        raise CommandFailed(failure(words, done.returncode, done.stdout, done.stderr))
    return done.stdout.decode()


def failure(words: Sequence[str], code: int, stdout: bytes, stderr: bytes) -> str:
    said = (stderr.strip() or stdout.strip()).decode(errors="replace")
    return f"{shlex.join(words[:12])} exited with {code}:\n{said[-4000:]}"
