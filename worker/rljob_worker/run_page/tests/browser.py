"""A real browser without a window. `make browser` installs it."""

import shutil
import subprocess
from pathlib import Path

from rljob_api.tests.patience import PATIENCE_SECONDS


def dom_of(url: str, profile: Path) -> str:
    """The page's elements as HTML, after its scripts ran."""
    chromium = shutil.which("chromium")
    assert chromium, "no chromium here; `make browser` installs it"
    command = [
        chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--metrics-recording-only",
        f"--user-data-dir={profile}", "--virtual-time-budget=2000", "--dump-dom", url,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5 * PATIENCE_SECONDS).stdout
