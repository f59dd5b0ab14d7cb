"""`python -m charts.values [FOLDER]`: write what the chart takes from the model of its values."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from charts.values.render import ceilings_data, image_list, values_schema, values_table, values_yaml

CHART = Path(__file__).parent.parent / "rljob"
_BEGIN, _END = "<!-- values -->\n", "<!-- end of values -->\n"


def rendered(chart: Path = CHART) -> dict[str, str]:
    """Every generated file by its path in the chart."""
    version = yaml.safe_load((chart / "Chart.yaml").read_text())["appVersion"]
    readme = (chart / "README.md").read_text()
    before, _, rest = readme.partition(_BEGIN)
    return {
        "values.yaml": values_yaml(),
        "values.schema.json": values_schema(),
        "files/images.txt": image_list(version),
        "files/ceilings.yaml": ceilings_data(),
        "README.md": before + _BEGIN + "\n" + values_table() + "\n" + _END + rest.partition(_END)[2],
    }


def main(folder: Path) -> None:
    for name, text in rendered(CHART).items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else CHART)
