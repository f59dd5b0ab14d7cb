"""The commands of README.md and docs/, and the Python that runs jobs, in a folder as a reader has it.

A page's blocks run one after the other. The model is one that knows nothing, and jobs end after two steps.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.tests.jobs import RLJOB
from rljob_worker.tests.session_root import job_environment
from testing.code_blocks import CHECKOUT, PAGES, blocks_of

pytestmark = pytest.mark.slow

SHORTER = {
    # makes a model for minutes, which the folder has in another form
    "rljob new --example arithmetic-grpo": "ls arithmetic-grpo.yaml arithmetic/model",
    "1e-6,3e-6,1e-5 --set seed=1,2": "1e-6,3e-6",
    "--set stop.steps=30": "",
    " --where 'response~sorry'": "",  # the model says no such thing
    "--resume 40": "--resume 1",
    "--step 40": "--step 1",
    "--step 12": "--step 1",
    "steps=100": "steps=2",
    "Qwen/Qwen3-0.6B": "arithmetic/model",
    "Qwen/Qwen2-0.5B-Instruct": "arithmetic/model",
    "hf://datasets/trl-lib/tldr": "arithmetic/train.parquet",
    ".plot()": ".mean()",  # needs matplotlib
}
"""What a page says, and what is run in its place."""
SHORT_JOB = "--set stop.steps=2 --set checkpoint.everySteps=1 --set data.batchSize=8 --set rollout.maxResponseTokens=8"
PROGRAM = f"""\
#!/bin/sh
case "$1" in
    run|sweep) exec {" ".join(RLJOB)} "$@" {SHORT_JOB};;
    *) exec {" ".join(RLJOB)} "$@";;
esac
"""
PYTHON_WITH_JOBS = [CHECKOUT / "docs" / name for name in ("python.md", "from-other-trainers.md")]


def runnable(*languages):
    """The pages with blocks of these languages that run, and those blocks as one text."""
    found = {page: [block for block in blocks_of(page, *languages) if not block.not_run] for page in PAGES}
    return [
        pytest.param(page, "".join(block.text for block in blocks), id=page.relative_to(CHECKOUT).as_posix())
        for page, blocks in found.items()
        if blocks
    ]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """With a `rljob` that runs short jobs."""
    program = tmp_path_factory.mktemp("bin") / "rljob"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    path = os.pathsep.join([str(program.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    return job_environment(PATH=path)


@pytest.fixture(scope="module")
def reader(tiny, environment, tmp_path_factory):
    """A folder with the examples, the tiny model, a job and two runs of it."""
    folder = tmp_path_factory.mktemp("reader")
    made = shutil.ignore_patterns("__pycache__", "reach-state", "arithmetic")
    shutil.copytree(CHECKOUT / "examples", folder / "examples", ignore=made)
    shutil.copy(CHECKOUT / "examples" / "arithmetic-grpo.yaml", folder)
    shutil.copytree(tiny, folder / "arithmetic")
    begin = "rljob new my-job --model arithmetic/model --data arithmetic/train.parquet\nrljob run my-job.yaml"
    check(["bash", "-eux", "-c", begin], folder, environment)
    shutil.copytree(folder / "runs" / "my-job", folder / "runs" / "other-job")
    return folder


def check(command, folder, environment):
    timeout = 10 * TEST_TIMEOUT_SECONDS
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr


def shorter(text):
    for said, run in SHORTER.items():
        text = text.replace(said, run)
    return text


def write_files(page, folder, environment):
    """The Python files that blocks of a page are, and those that its other blocks make."""
    for block in blocks_of(page, "python"):
        if block.file:
            (folder / block.file).write_text(block.text)
        elif "open(" in block.text and not block.not_run:
            check([sys.executable, "-c", block.text], folder, environment)


@pytest.mark.parametrize(("page", "text"), runnable("sh"))
def test_the_commands_of_a_page_run(page, text, reader, environment, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(reader, folder)
    if "rljob new my-job" in text:
        shutil.rmtree(folder / "runs")
        (folder / "my-job.yaml").unlink()
    write_files(page, folder, environment)
    check(["bash", "-eux", "-c", shorter(text)], folder, environment)


@pytest.mark.parametrize("page", PYTHON_WITH_JOBS, ids=lambda page: page.stem)
def test_the_jobs_from_python_run(page, reader, environment, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(reader, folder, ignore=shutil.ignore_patterns("runs"))
    job = (reader / "my-job.yaml").read_text()
    for said, run in {"steps: 100": "steps: 2", "maxResponseTokens: 448": "maxResponseTokens: 8"}.items():
        assert said in job
        job = job.replace(said, run)
    (folder / "job.yaml").write_text(job)
    blocks = [shorter(block.text) for block in blocks_of(page, "python") if not block.not_run]
    (folder / "page.py").write_text("\n".join(blocks))
    check([sys.executable, "page.py"], folder, environment)
