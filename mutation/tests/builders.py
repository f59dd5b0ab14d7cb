"""A git repository to try things on."""

import subprocess
from pathlib import Path


def commit_all(root: Path) -> None:
    """Make the files of `root` the only commit of `main`."""
    git(root, "init", "--initial-branch=main")
    git(root, "add", ".")
    git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--message=all")


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True)
