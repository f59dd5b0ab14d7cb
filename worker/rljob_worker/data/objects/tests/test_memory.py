"""The one look at every prompt holds as much at once of a long data set as of a short one."""

import gc
import tracemalloc
from pathlib import Path

from rljob_worker.data.listing import DataFile
from rljob_worker.data.objects.lines import LineSource
from rljob_worker.data.prompts import PromptEncoder
from rljob_worker.data.survey import survey
from rljob_worker.data.tests.tokenizers_for_tests import words_tokenizer

LINE = b'{"prompt": "%s"}\n' % (b"a word " * 2)
BLOCK_ROWS = 200


class SameLines:
    """A store whose files are this line again and again."""

    def read(self, spans):
        return [
            (LINE * ((span.stop - span.start) // len(LINE) + 2))[span.start % len(LINE) :][: span.stop - span.start]
            for span in spans
        ]


def most_bytes(folder: Path, num_rows: int) -> int:
    """While a data set of so many rows is surveyed."""
    file = DataFile("s3://data/long.jsonl", num_rows * len(LINE), "v1")
    source = LineSource("long", file.path, (file,), ("prompt",), SameLines())
    encoder = PromptEncoder(words_tokenizer(), apply_chat_template=False, system_prompt=None)
    gc.collect()  # what others left would be counted as it goes
    tracemalloc.start()
    result = survey(
        source, encoder, prompt="prompt", columns=(), max_tokens=64, max_rows=None, cache_dir=folder / str(num_rows)
    )
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(result.places) == num_rows
    return most


def test_a_survey_takes_as_much_memory_whatever_the_size_of_the_data(tmp_path, monkeypatch):
    monkeypatch.setattr("rljob_worker.data.objects.lines.SCAN_BYTES", BLOCK_ROWS * len(LINE))
    most_bytes(tmp_path / "first", 2 * BLOCK_ROWS)  # whatever is made once
    few, many = (most_bytes(tmp_path, blocks * BLOCK_ROWS) for blocks in (16, 56))
    # 8,000 rows more; whatever is kept of each is a number of 8 bytes at the least
    assert many - few < 40 * BLOCK_ROWS * 8
