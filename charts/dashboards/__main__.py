"""`python -m charts.dashboards [FOLDER]`: write dashboards and alert rules where the chart takes them from."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from charts.dashboards.alerts import rule_groups
from charts.dashboards.data_plane import DATA_PLANE
from charts.dashboards.grafana import to_json
from charts.dashboards.operations import OPERATIONS
from charts.dashboards.training import TRAINING

BOARDS = (TRAINING, DATA_PLANE, OPERATIONS)
FILES = Path(__file__).parent.parent / "rljob" / "files"


def rendered() -> dict[str, str]:
    """Every generated file by its path under the chart's `files`."""
    boards = {f"dashboards/{spec.uid}.json": to_json(spec) for spec in BOARDS}
    return {**boards, "alerts.yaml": yaml.safe_dump(rule_groups(), sort_keys=False, width=120)}


def main(folder: Path) -> None:
    for name, text in rendered().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FILES)
