"""A real browser without a window, where there is one. `make browser` installs it on Debian."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS

LIMIT = 5 * TEST_TIMEOUT_SECONDS
"""Seconds for one page."""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def dom_of(url: str, profile: Path) -> str:
    """The page's elements as HTML, after its scripts ran. Skips the test where there is no browser; fails it in CI."""
    return _said(profile, "--dump-dom", url)


def screenshot(url: str, profile: Path, width: int, *, dark: bool = False) -> Image.Image:
    """The page's first 1,500 lines in a window of this width, in pixels, as RGB; see `dom_of`."""
    path = profile.with_suffix(".png")
    options = [
        f"--screenshot={path}",
        f"--window-size={width},1500",
        "--hide-scrollbars",
        *["--force-dark-mode"] * dark,
    ]
    _said(profile, *options, url)
    with Image.open(path) as image:
        return image.convert("RGB")


def _said(profile: Path, *options: str) -> str:
    """A browser that does not end, as one did beside 12 busy processes, gets a second try with a profile of its own."""
    for attempt in ("first", "second"):
        command = _command(profile.with_name(f"{profile.name}-{attempt}"), *options)
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT / 2).stdout
        except subprocess.TimeoutExpired as error:
            ended = error
    raise ended


def _command(profile: Path, *options: str) -> list[str]:
    command = [
        _browser(), "--headless", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--metrics-recording-only",
        f"--user-data-dir={profile}", "--virtual-time-budget=2000",
    ]  # fmt: skip
    if os.geteuid() == 0:
        command.append("--no-sandbox")  # root cannot have one
    return [*command, *options]


def _browser() -> str:
    result = next(filter(None, map(shutil.which, NAMES)), None)
    if result is None:
        problem = f"none of {', '.join(NAMES)} is installed; `make browser` installs the first"
        pytest.fail(problem) if os.environ.get("CI") else pytest.skip(problem)
    return result
