"""A real browser without a window, where there is one. `make browser` installs it on Debian."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def dom_of(url: str, profile: Path) -> str:
    """The page's elements as HTML, after its scripts ran. Skips the test where there is no browser; fails it in CI."""
    command = [
        _browser(), "--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--metrics-recording-only",
        f"--user-data-dir={profile}", "--virtual-time-budget=2000", "--dump-dom", url,
    ]  # fmt: skip
    if os.geteuid() == 0:
        command.append("--no-sandbox")  # root cannot have one
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5 * TEST_TIMEOUT_SECONDS).stdout


def _browser() -> str:
    result = next(filter(None, map(shutil.which, NAMES)), None)
    if result is None:
        problem = f"none of {', '.join(NAMES)} is installed; `make browser` installs the first"
        pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)
    return result
