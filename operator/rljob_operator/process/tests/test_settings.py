"""Settings: every field has a default, unknown ones are errors, messages name file and field."""

from pathlib import Path

import pytest

from rljob_api.catalogue.profiles import profiles_from
from rljob_operator.process.settings import BadSettings, OperatorSettings, load_settings


def write(folder: Path, text: str) -> Path:
    path = folder / "operator.yaml"
    path.write_text(text)
    return path


def test_no_file_and_an_empty_file_mean_the_defaults(tmp_path: Path) -> None:
    assert load_settings(None) == load_settings(write(tmp_path, "")) == OperatorSettings()
    assert (OperatorSettings().api.requests_per_second, OperatorSettings().api.burst) == (50, 100)


def test_fields_are_spelt_as_in_yaml(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        namespaces: [team-a, team-b]
        api: {requestsPerSecond: 20, burst: 40}
        lease: {durationSeconds: 30, renewDeadlineSeconds: 20}
        pods: {images: {worker: example.org/worker:1}}
        profiles: {my-npu: {resource: example.com/npu, device: npu, backend: hccl}}
        """,
    )
    settings = load_settings(path)
    assert settings.namespaces == ("team-a", "team-b")
    assert settings.api.requests_per_second == 20
    assert settings.pods.images.worker == "example.org/worker:1"
    assert profiles_from(settings.profiles)["my-npu"].resource == "example.com/npu"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("workerz: 1", "operator.yaml: workerz: Extra inputs are not permitted"),
        ("api: {burst: 0}", "operator.yaml: api.burst: Input should be greater than or equal to 1"),
        ("api: {burst: many}", "operator.yaml: api.burst: Input should be a valid integer"),
        ("logFormat: xml", "operator.yaml: logFormat: Input should be 'Text' or 'Json'"),
        ("- a list", "operator.yaml: settings: Input should be a valid dictionary"),
        ("a: b: c", "operator.yaml: not YAML"),
    ],
)
def test_mistakes_are_named_with_file_and_field(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(BadSettings) as caught:
        load_settings(write(tmp_path, text))
    assert words in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="absent.yaml: No such file or directory; give --config a readable file"):
        load_settings(tmp_path / "absent.yaml")
