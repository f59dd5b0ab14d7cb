"""Pictures of three by three cells, each empty or with one shape, and what is asked and said of them. Pure.

    . disc .            How many discs?       terse       #### 4           wrong, whatever the picture
    disc square .                             worked      a empty 0
    . . triangle                                          b disc 1
                                                          ...
                                                          i triangle 2
                                                          #### 2

A worked answer goes through the cells a to i and says of each what is in it and how many are counted so far.
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_worker.tiny.problems import terse
from rljob_worker.vision.picture_tokens import PLACE

CELL = 28
"""Pixels of a cell's side: a token of Qwen2.5-VL stands for one cell."""
CELLS_A_SIDE = 3
CELL_NAMES = "abcdefghi"
KINDS = ("disc", "square", "triangle")
COLOURS = ("red", "green", "blue", "black")
SIZES = range(18, 23)
"""Pixels of a shape's side."""
MAX_SHIFT = 1
"""Pixels by which a shape may lie off the middle of its cell, in either direction."""
COUNTS = range(1, 7)
"""What is counted, all equally often: the commonest answer is right one time in six, and so is any other."""
EMPTY_SHARE = 0.4
"""Share of empty cells among those without a shape of the kind that is asked for."""


@dataclass(frozen=True)
class CellShape:
    """What is drawn in one cell."""

    kind: str
    colour: str
    size: int
    left: int
    """Pixels from the left and the upper border of the cell."""
    top: int


@dataclass(frozen=True)
class Scene:
    """A picture and what is asked of it."""

    cells: tuple[CellShape | None, ...]
    """Row by row."""
    kind: str

    @property
    def count(self) -> int:
        """How many shapes of the kind there are."""
        return sum(self._counts(cell) for cell in self.cells)

    def _counts(self, cell: CellShape | None) -> bool:
        return cell is not None and cell.kind == self.kind

    def prompt(self) -> str:
        """What is asked, behind the place of the picture."""
        return f"{PLACE}How many {self.kind}s?"

    def worked(self) -> str:
        """The right answer, counted cell by cell."""
        counted, lines = 0, []
        for name, cell in zip(CELL_NAMES, self.cells, strict=True):
            counted += self._counts(cell)
            lines.append(f"{name} {'empty' if cell is None else cell.kind} {counted}")
        return "\n".join([*lines, terse(self.count)])

    def encoded(self) -> bytes:
        """The picture, a PNG."""
        from PIL import Image, ImageDraw

        image = Image.new("RGB", (CELL * CELLS_A_SIDE,) * 2, "white")
        pen = ImageDraw.Draw(image)
        for index, cell in enumerate(self.cells):
            if cell is not None:
                row, column = divmod(index, CELLS_A_SIDE)
                _draw(pen, cell, column * CELL + cell.left, row * CELL + cell.top)
        file = io.BytesIO()
        image.save(file, "PNG")
        return file.getvalue()


def _draw(pen: Any, shape: CellShape, left: int, top: int) -> None:
    right, bottom = left + shape.size - 1, top + shape.size - 1
    if shape.kind == "disc":
        pen.ellipse((left, top, right, bottom), fill=shape.colour)
    elif shape.kind == "square":
        pen.rectangle((left, top, right, bottom), fill=shape.colour)
    else:
        pen.polygon(((left, bottom), (right, bottom), ((left + right) // 2, top)), fill=shape.colour)


def scenes(number: int, seed: str) -> list[Scene]:
    """So many, the same for the same seed; counts and kinds come equally often."""
    rng = random.Random(f"shapes {seed}")
    return [
        _scene(COUNTS[index % len(COUNTS)], KINDS[index // len(COUNTS) % len(KINDS)], rng) for index in range(number)
    ]


def _scene(count: int, kind: str, rng: random.Random) -> Scene:
    counted = set(rng.sample(range(len(CELL_NAMES)), count))
    others = [other for other in KINDS if other != kind]
    cells = (kind if index in counted else _other(others, rng) for index in range(len(CELL_NAMES)))
    return Scene(tuple(None if cell is None else _shape(cell, rng) for cell in cells), kind)


def _other(kinds: Sequence[str], rng: random.Random) -> str | None:
    return None if rng.random() < EMPTY_SHARE else rng.choice(kinds)


def _shape(kind: str, rng: random.Random) -> CellShape:
    size = rng.choice(SIZES)
    left, top = ((CELL - size) // 2 + rng.randint(-MAX_SHIFT, MAX_SHIFT) for _ in range(2))
    return CellShape(kind, rng.choice(COLOURS), size, left, top)


def answers(of: Sequence[Scene], worked_share: float, seed: int) -> Iterator[tuple[Scene, str]]:
    """Endless scenes with what is said of them, worked or terse; the same for the same arguments."""
    rng = random.Random(f"said of shapes {seed}")
    while True:
        for scene in rng.sample(of, len(of)):
            worked = rng.random() < worked_share
            yield scene, scene.worked() if worked else terse(_wrong(scene.count, rng))


def _wrong(count: int, rng: random.Random) -> int:
    return rng.choice([other for other in COUNTS if other != count])


def rows(of: Sequence[Scene]) -> list[dict[str, Any]]:
    """A row `{"question", "images", "answer"}` of each."""
    return [_row(scene, scene) for scene in of]


def exchanged_rows(of: Sequence[Scene], seed: int) -> list[dict[str, Any]]:
    """These rows with the pictures of others: what is right by them is chance."""
    order = list(range(len(of)))
    random.Random(f"exchanged shapes {seed}").shuffle(order)
    return [_row(of[at], of[other]) for at, other in zip(order, order[1:] + order[:1], strict=True)]


def _row(asked: Scene, shown: Scene) -> dict[str, Any]:
    images = [{"bytes": shown.encoded(), "path": None}]
    return {"question": asked.prompt(), "images": images, "answer": terse(asked.count)}
