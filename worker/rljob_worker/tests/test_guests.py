"""Whole jobs whose generators come and go: nothing that is learned depends on them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_worker.tests.elastic_run import RUN_SECONDS, ElasticRun, elastic_run
from rljob_worker.tests.fault_injection import ask_for, held
from rljob_worker.tests.jobs import CPU, Run, make_job
from rljob_worker.tests.metrics import without_times
from rljob_worker.tests.test_conversation_jobs import CONVERSATION, PLAY
from rljob_worker.tests.test_resume import checkpoint_digest
from rljob_worker.tests.waiting import wait_for

NUM_STEPS = 6
VALIDATED = [0, 2, 4, 6]
NUM_PLAYED = 4
IN_STEP_3 = 'any(FOLDER.glob("**/journals/step-00000003"))'
"""How whole jobs are killed in step 3; journals of guests are elsewhere."""
COMMITTED = "await asyncio.to_thread(await_commit, 2)"
"""What whole jobs wait for before. A guest must not: it may deliver rows of step 2 with those of the waiting game."""
BY_PLACE = ("data/", "time/", "generators/", "leases/")
"""Metrics of who had which rows, and how long."""


def elastic_job(tiny: Path, **spec: Any) -> dict[str, Any]:
    """Two trainers on two hosts; leases of 2 groups, 2 of each rank and step."""
    job = make_job(
        tiny,
        **{
            "workerGroups": [
                {"name": "rollout", "accelerator": CPU, "elastic": {"min": 1, "max": 3}},
                {"name": "train", "replicas": 2, "accelerator": CPU},
            ],
            "rollout": {"maxResponseTokens": 12, "maxStaleness": 1, "leaseRows": 4},
            "algorithm": {"name": "GRPO", "groupSize": 4, "kl": {"coefficient": 0.01}},
            "stop": {"steps": NUM_STEPS},
            "validation": {"maxRows": 8, "everySteps": 2},
            **spec,
        },
    )
    job["spec"]["rewards"][0]["timeoutSeconds"] = RUN_SECONDS
    return job


def learnt(run: Run) -> Any:
    """All that a run came to, whoever made which rows."""
    samples = sorted((run.directory / "samples.jsonl").read_text().splitlines())
    return checkpoint_digest(run.directory), without_times(run.metrics, *BY_PLACE), samples


def ended(run: ElasticRun, num_steps: int = NUM_STEPS) -> Run:
    result = run.finished()
    assert result.code == 0, run.logs
    assert result.metrics[-1]["step"] == num_steps
    return result


@pytest.fixture(scope="module")
def undisturbed(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a run with one guest that stays comes to."""
    with elastic_run(elastic_job(tiny), tmp_path_factory.mktemp("whole")) as run:
        guest = run.guest(0)
        result = ended(run)
        assert guest.code() == 0
        words = guest.last_words
        num_leases = 4 * (NUM_STEPS + len(VALIDATED))  # of each step, and pieces of each validation
        assert words is not None and words.cause == f"nothing is left to generate, after {num_leases} leases"
        assert result.metrics[-1]["generators/there"] == 1
        assert [step["step"] for step in result.metrics if "validation/accuracy" in step] == VALIDATED
        assert all(step["update/gradient_norm"] > 0 for step in result.metrics[1:])
        assert {step["staleness/max"] for step in result.metrics[2:]} == {1.0}
        return learnt(result)


@pytest.mark.slow
def test_a_guest_that_is_killed_changes_nothing(tiny: Path, tmp_path: Path, undisturbed: Any) -> None:
    with elastic_run(elastic_job(tiny), tmp_path) as run:
        run.guest(0)
        run.wait_for_step(1)  # nobody else has generated it
        run.guest(1)
        run.kill(0)
        run.wait_for_step(3)
        run.guest(0)
        result = ended(run)
        assert learnt(result) == undisturbed
        assert result.metrics[-1]["generators/lost_total"] == 1


def held_in_a_lease(run: ElasticRun, number: int, row: int) -> None:
    """Start a guest, the only one that generates, and wait until the reward of a row of its lease hangs."""
    ask_for(run.folder.parent, rows={row: "hold"})
    run.guest(number)
    wait_for(held(run.folder.parent, row).exists, RUN_SECONDS)


@pytest.mark.slow
def test_guests_that_are_asked_to_end_or_hang_change_nothing(tiny: Path, tmp_path: Path, undisturbed: Any) -> None:
    rollout = {"maxResponseTokens": 12, "maxStaleness": 1, "leaseRows": 4, "leaseSeconds": 3}
    with elastic_run(elastic_job(tiny, rollout=rollout), tmp_path / "job") as run:
        held_in_a_lease(run, 0, row=20)  # of step 2
        assert run.signal(0, signal.SIGTERM).code() == ExitCode.STOPPED
        run.kill(0)  # its data buffer, which a launcher ends
        held_in_a_lease(run, 1, row=32)  # of step 3
        run.signal(1, signal.SIGSTOP)
        ask_for(tmp_path, rows={80: "hang"})  # of step 6
        run.guest(2)
        run.wait_for_step(3)
        run.kill(2)
        run.signal(1, signal.SIGCONT)  # it delivers late, and makes what is left, until its reward hangs for good
        wait_for(held(tmp_path, 80).exists, RUN_SECONDS)
        ask_for(tmp_path)
        run.guest(0)
        result = ended(run)
        assert learnt(result) == undisturbed
        assert result.metrics[-1]["leases/dropped_late_total"] == 1
        assert result.metrics[-1]["leases/given_again_total"] >= 2
        owners = "".join(path.read_text() for path in sorted(run.folder.glob("buffer-train-*.log")))
        assert "late, and given to others as well: lease" in owners and "host rollout-1 has it for" in owners


@pytest.mark.slow
def test_a_gang_that_is_killed_goes_on_with_new_guests(tiny: Path, tmp_path: Path, undisturbed: Any) -> None:
    with elastic_run(elastic_job(tiny), tmp_path) as run:
        run.guest(0)
        run.guest(1)
        run.wait_for_step(4)  # the checkpoint of step 2 is committed
        run.begin_again()
        run.guest(2)
        result = ended(run)
        assert "resumed from step" in run.logs
        assert learnt(result) == undisturbed


@pytest.mark.slow
def test_conversations_of_a_guest_that_is_killed_are_played_again_alike(tiny: Path, tmp_path: Path) -> None:
    job = elastic_job(
        tiny,
        rollout={"maxResponseTokens": 100, "maxStaleness": 1, "leaseRows": 4, "conversation": CONVERSATION},
        rewards=[{"name": "world", "run": "play:rewarded", "column": "environment_reward"}],
        stop={"steps": NUM_PLAYED},
    )
    del job["spec"]["data"]["validation"], job["spec"]["validation"]
    results = []
    for crashes in (False, True):
        folder = tmp_path / f"crashes-{crashes}"
        folder.mkdir()
        (folder / "play.py").write_text(PLAY.replace(IN_STEP_3, "task.trajectory == 37").replace(COMMITTED, "pass"))
        if not crashes:
            (folder / "crashed").touch()
        with elastic_run(job, folder) as run:
            guest = run.guest(0)
            if crashes:  # by itself, in the middle of a conversation of step 3
                assert guest.code() == -signal.SIGKILL
                run.kill(0)
                run.guest(1)
            results.append(learnt(ended(run, NUM_PLAYED)))
    (checkpoint, metrics, samples), (of_killed, metrics_of_killed, samples_of_killed) = results
    assert (checkpoint, samples) == (of_killed, samples_of_killed)
    # what decodes beside a row, which is a matter of time, is in the last digits of the engine's log-probs
    for step, again in zip(metrics, metrics_of_killed, strict=True):
        engine = {name: value for name, value in step.items() if name.startswith("mismatch/")}
        assert {name: again.pop(name) for name in engine} == pytest.approx(engine, rel=1e-6, abs=1e-6)
        assert {name: value for name, value in step.items() if name not in engine} == again
    assert {step["conversation/turns_mean"] for step in metrics} == {3.0}
