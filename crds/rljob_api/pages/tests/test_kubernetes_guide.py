"""The fragments of docs/kubernetes.md are parts of jobs that can run."""

import re
import textwrap
from pathlib import Path

import pytest
import yaml

from rljob_api import parse_job
from rljob_api.tests.builders import SMALL

PAGE = Path(__file__).parents[4] / "docs/kubernetes.md"
FRAGMENTS = [textwrap.dedent(block) for block in re.findall(r"(?m)^    spec:\n(?:(?:     .*)?\n)+", PAGE.read_text())]


def test_there_are_fragments():
    assert len(FRAGMENTS) == 6


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_a_fragment_is_part_of_a_job(fragment):
    job = yaml.safe_load(SMALL)
    job["spec"] |= yaml.safe_load(fragment)["spec"]
    if job["spec"].get("workerGroups"):
        job["spec"]["data"]["batchSize"] = 16  # 2 pods of 8 accelerators share it
    parse_job(yaml.safe_dump(job))
