"""A job whose vLLM fails in the middle of generating; collected where vLLM is installed."""

from __future__ import annotations

from pathlib import Path

from rljob_worker.tests.jobs import run_job
from rljob_worker.tests.trouble import ask_for, troubled_job


def test_a_run_goes_on_with_a_fresh_engine_and_says_its_last_words(tiny: Path, tmp_path: Path) -> None:
    job = troubled_job(tiny, rollout={"engine": "VLLM", "maxResponseTokens": 12}, stop={"steps": 3})
    ask_for(tmp_path, steps={2: "break_vllm"})
    run = run_job(job, tmp_path, timeout_seconds=500)
    assert run.code == 0, run.output + run.logs
    assert "vLLM broke while generating: RuntimeError: illegal instruction" in run.output
    assert "restart 1 of 3, from the checkpoint of step 2" in run.output
    assert [step["step"] for step in run.metrics] == [1, 2, 3]
