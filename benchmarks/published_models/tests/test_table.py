"""Plans of published models, as the docs show them."""

from __future__ import annotations

from pathlib import Path

from published_models.fitted import fitted_table
from published_models.jobs import JOBS, table

DOCS = Path(__file__).parents[3] / "docs" / "memory-and-speed.md"


def test_the_docs_have_what_the_planner_says() -> None:
    """To fit the jobs takes seconds: one test asks for it."""
    page, proposed = DOCS.read_text(encoding="utf-8"), "\n".join(fitted_table())
    assert "\n".join(table()) in page and proposed in page
    assert "offload.parameters" not in proposed, "parameters are to stay on the device"


def test_a_tower_has_room_beside_its_decoder() -> None:
    with_tower, decoder = (job.memory().phases[0].weights for job in JOBS[1:])
    # 73,410,777,344 parameters as published, less 72,706,203,648 of the decoder: 4 bytes of each over 32 workers that
    # train, and 2 bytes on every one, since what generates splits its decoder alone
    assert with_tower - decoder == 704_573_696 * 4 // 32 + 704_573_696 * 2
