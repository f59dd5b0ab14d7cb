"""The rehearsal before workers start."""

import os

import pytest

from rljob_api.loading.load import parse_job
from rljob_api.planning.planner import plan
from rljob_api.vocabulary import keys
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.launcher.launching import rehearse_once
from rljob_worker.launcher.pod import PodIdentity
from rljob_worker.rehearsal.tests import good_job

TOO_SHORT = {"data/train.jsonl": good_job.lines([{"prompt": "a b c", "answer": "1"}] * 5)}


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Environment of a launcher whose working directory is the job's folder; `spoil` writes another job."""
    monkeypatch.chdir(tmp_path)

    def spoil(changed=None, **fields):
        path = good_job.write(tmp_path, changed, fields)
        (tmp_path / "plan.json").write_text(plan(parse_job(path.read_text())).canonical_json())
        reported = {keys.ENV_PLAN: str(tmp_path / "plan.json"), keys.ENV_GROUP: "train", keys.ENV_CODE: str(tmp_path)}
        return os.environ | reported

    return spoil


def pod(host=0, attempt=1):
    return PodIdentity("train", host, 1, attempt, None, 0)


def test_a_job_that_can_run_begins(environment):
    rehearse_once(pod(), environment())


def test_the_first_pod_ends_a_job_that_cannot_run_in_the_words_of_validate(environment):
    with pytest.raises(InvalidJob, match=r"spec.rewards\[0\].run: .* no module 'gone'"):
        rehearse_once(pod(), environment(**{"rewards.0.run": "gone:score"}))
    with pytest.raises(BadData, match="every prompt of data.train is longer than this"):
        rehearse_once(pod(), environment(TOO_SHORT, **{"data.maxPromptTokens": 2}))


def test_a_pod_without_a_compiler_for_what_is_compiled_ends_before_torch_is_imported(environment):
    with pytest.raises(InvalidJob, match=r"spec.training.compile: .* g\+\+, which is not installed here"):
        rehearse_once(pod(), environment(training={"compile": True}) | {"PATH": "/nowhere", "CXX": "g++"})


@pytest.mark.parametrize(
    ("who", "added"), [(pod(host=1), {}), (pod(attempt=2), {}), (pod(), {keys.ENV_REHEARSED: "1"})]
)
def test_nobody_looks_twice(environment, who, added):
    rehearse_once(who, environment(**{"rewards.0.run": "gone:score"}) | added)


def test_a_rehearsal_that_fails_itself_ends_nothing(environment):
    rehearse_once(pod(), environment() | {keys.ENV_PLAN: "/nowhere"})
