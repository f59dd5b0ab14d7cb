"""Which pass a pipeline stage makes when, and which layers it has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_worker.engines.fsdp.pipeline import pipeline_passes


@pytest.mark.parametrize(
    ("stage", "passes"),
    [
        (0, "F0 F1 F2 B0 F3 B1 B2 B3"),
        (1, "F0 F1 B0 F2 B1 F3 B2 B3"),
        (2, "F0 B0 F1 B1 F2 B2 F3 B3"),
    ],
)
def test_the_three_stages_of_the_example(stage: int, passes: str) -> None:
    assert " ".join(f"{kind[0].upper()}{index}" for kind, index in pipeline_passes(stage, 3, 4)) == passes


@given(st.integers(1, 6), st.integers(1, 9))
def test_every_pass_finds_what_it_needs(num_stages: int, num_runs: int) -> None:
    """Each stage in turn does its next pass if its input is there: none is left, and few wait for their backward."""
    left = [list(pipeline_passes(stage, num_stages, num_runs)) for stage in range(num_stages)]
    made: set[tuple[int, str, int]] = set()
    while any(left):
        moved = False
        for stage, passes in enumerate(left):
            if not passes:
                continue
            kind, index = passes[0]
            before = stage - 1 if kind == "forward" else stage + 1
            is_there = before in (-1, num_stages) or (before, kind, index) in made
            if is_there and (kind == "forward" or (stage, "forward", index) in made):
                made.add((stage, *passes.pop(0)))
                moved = True
                forwards = [i for i in range(num_runs) if (stage, "forward", i) in made]
                on_their_way = [i for i in forwards if (stage, "backward", i) not in made]
                assert len(on_their_way) <= num_stages - stage
        assert moved, f"all stages wait: {left}"
    assert len(made) == 2 * num_stages * num_runs
