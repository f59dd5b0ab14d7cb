"""The environment of a data buffer: without the secret of the job it does not start."""

from pathlib import Path

import pytest

from rljob_worker.databuffer.server.process import settings_from
from rljob_worker.databuffer.tests.gang import TOKEN, Gang, two_stages
from rljob_worker.errors import InvalidJob


def environment(directory: Path) -> dict[str, str]:
    gang = Gang(two_stages(), directory)
    gang.write_files()
    return gang.environment("train", 0)


def test_the_token_is_read_from_its_file(tmp_path: Path):
    assert settings_from(environment(tmp_path)).identity.token == TOKEN


def test_a_job_that_spills_says_where_or_whoever_starts_it_does(tmp_path: Path):
    def spill_of(spill: dict[str, str] | None, **lack: str) -> object:
        gang = Gang(two_stages(spill=spill), tmp_path)
        gang.write_files()
        return settings_from({**gang.environment("train", 0), **lack}).spill

    assert spill_of(None) is None
    assert spill_of({"limit": "1Mi"}) == (tmp_path, 1 << 20)
    assert spill_of({"limit": "1Mi", "directory": "/nvme"}, RLJOB_SPILL_DIR="") == (Path("/nvme"), 1 << 20)
    with pytest.raises(InvalidJob, match="RLJOB_SPILL_DIR is not set"):
        spill_of({"limit": "1Mi"}, RLJOB_SPILL_DIR="")


def test_how_long_peers_are_waited_for_is_a_number_or_named(tmp_path: Path):
    given = environment(tmp_path)
    chosen = {"RLJOB_BUFFER_RETRY_SECONDS": "0.5", "RLJOB_BUFFER_START_SECONDS": "", "RLJOB_BUFFER_FAN_OUT": "1"}
    settings = settings_from({**given, **chosen})
    assert (settings.retry_seconds, settings.start_seconds, settings.fan_out) == (0.5, 300.0, 1)
    for name, value, least in [
        ("RLJOB_BUFFER_RETRY_SECONDS", "5s", 0),
        ("RLJOB_BUFFER_START_SECONDS", "-1", 0),
        ("RLJOB_BUFFER_RETRY_SECONDS", "nan", 0),
        ("RLJOB_BUFFER_FAN_OUT", "0", 1),
        ("RLJOB_BUFFER_FAN_OUT", "inf", 1),
    ]:
        with pytest.raises(InvalidJob, match=f"{name} is '{value}', and has to be a number of at least {least}; unset"):
            settings_from({**given, name: value})


@pytest.mark.parametrize("lack", ["not set", "no file", "empty"])
def test_a_data_buffer_without_a_token_does_not_start_and_names_the_variable(tmp_path: Path, lack: str):
    given = environment(tmp_path)
    if lack == "not set":
        del given["RLJOB_TOKEN_FILE"]
    elif lack == "no file":
        (tmp_path / "token").unlink()
    else:
        (tmp_path / "token").write_text("\n")
    with pytest.raises(InvalidJob, match="RLJOB_TOKEN_FILE"):
        settings_from(given)
