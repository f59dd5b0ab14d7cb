"""Programs of the cluster: how they are named, versioned and run."""

import pytest

from e2e.cluster.commands import CommandFailed, run
from e2e.cluster.go_programs import GO_PROGRAMS, replacements
from e2e.cluster.waiting import wait_until


def test_every_program_has_a_folder_of_its_own() -> None:
    assert len({program.key() for program in GO_PROGRAMS.values()}) == len(GO_PROGRAMS)
    assert all(program.key().startswith(f"{name}-v") for name, program in GO_PROGRAMS.items())


def test_a_failed_command_shows_what_it_said() -> None:
    with pytest.raises(CommandFailed, match=r"exited with 3:\nno such thing"):
        run("sh", "-c", "echo no such thing >&2; exit 3")


def test_waiting_in_vain_says_for_what_and_what_there_was() -> None:
    with pytest.raises(TimeoutError, match=r"for two nodes; the last answer was \[\]"):
        wait_until(list, "two nodes", timeout_seconds=0)


def test_siblings_at_a_placeholder_get_the_version_they_are_published_as() -> None:
    go_mod = {
        "Require": [
            {"Path": "k8s.io/api", "Version": "v0.0.0"},
            {"Path": "sigs.k8s.io/yaml", "Version": "v1.4.0"},
        ],
        "Replace": [{"Old": {"Path": "k8s.io/api"}, "New": {"Path": "./staging/src/k8s.io/api"}}],
    }
    assert replacements(go_mod, "v1.34.2") == ["-replace=k8s.io/api=k8s.io/api@v0.34.2"]


def test_what_a_release_replaces_by_another_module_stays_replaced() -> None:
    other = {"Old": {"Path": "example.org/one"}, "New": {"Path": "example.org/fork", "Version": "v2.0.1"}}
    go_mod = {"Require": [{"Path": "example.org/one", "Version": "v1.0.0"}], "Replace": [other]}
    assert replacements(go_mod, "v1.34.2") == ["-replace=example.org/one=example.org/fork@v2.0.1"]


def test_a_release_that_replaces_nothing_has_no_list_of_it() -> None:
    assert replacements({"Require": [], "Replace": None}, "v1.34.2") == []
