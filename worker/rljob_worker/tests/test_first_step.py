"""What must hold in the first step of any run, measured in a real one: nothing has moved yet, so all policies are one.

Three of them score the same rows: the rollout engine while it draws, the training engine before the update, the update.
"""

import pytest

from rljob_worker.tests.jobs import make_job, run_job

PRECISION = 1e-5
"""Of a log-probability in float32, by two engines that compute it in different orders."""


@pytest.fixture(scope="module")
def steps(tiny, tmp_path_factory):
    algorithm = {
        "name": "GRPO",
        "groupSize": 4,
        # old log-probs are there for the correction; the divergence is that of whole distributions
        "correction": {"method": "TruncatedImportance"},
        "kl": {"estimator": "Full", "coefficient": 0.01},
    }
    job = make_job(tiny, "first", algorithm=algorithm, checkpoint={"everySteps": 0})
    del job["spec"]["data"]["validation"]
    folder = tmp_path_factory.mktemp("first")
    for name in ("json", "numpy", "queue", "rljob_worker"):  # whatever lies beside a job hides nothing of ours
        (folder / f"{name}.py").write_text("raise RuntimeError('imported from the folder of the job')\n")
    run = run_job(job, folder)
    assert run.code == 0, run.output + run.logs
    return run.metrics


@pytest.mark.slow
def test_the_training_engine_agrees_with_the_rollout_engine(steps):
    first = steps[0]
    assert first["mismatch/k1"] == pytest.approx(0.0, abs=PRECISION)
    assert first["mismatch/k3"] == pytest.approx(0.0, abs=PRECISION**2)
    assert first["mismatch/ratio_max"] == pytest.approx(1.0, abs=10 * PRECISION)
    assert first["mismatch/effective_sample_size"] == pytest.approx(1.0, abs=PRECISION)
    assert first["mismatch/fraction_truncated"] == first["mismatch/fraction_masked"] == 0.0


@pytest.mark.slow
def test_the_update_begins_at_the_policy_that_was_scored(steps):
    first = steps[0]
    assert first["policy/ratio"] == pytest.approx(1.0, abs=PRECISION)
    assert first["policy/ratio_max"] == pytest.approx(1.0, abs=10 * PRECISION)
    assert first["kl/old"] == pytest.approx(0.0, abs=PRECISION**2)
    assert first["policy/clip_fraction_low"] == first["policy/clip_fraction_high"] == 0.0


@pytest.mark.slow
def test_the_reference_is_left_behind_by_the_first_update(steps):
    assert steps[0]["kl/reference"] == pytest.approx(0.0, abs=PRECISION**2)
    assert steps[1]["kl/reference"] > PRECISION
    # the update moved the weights, and the next rows are drawn and scored with the same ones again
    assert steps[1]["policy/ratio"] == pytest.approx(1.0, abs=PRECISION)
