"""Interfaces by the addresses of this machine, and of one in a network namespace."""

import subprocess
import sys

import pytest

from rljob_worker.local.pods.interface import interface_of
from rljob_worker.tests.namespaces import inside, namespaces


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1"])  # Debian gives a machine's name the second
def test_all_addresses_of_the_loopback_are_its_own(address):
    assert interface_of(address).startswith("lo")


def test_the_interface_is_that_with_the_address():
    script = (
        "import sys; from rljob_worker.local.pods.interface import interface_of as of; print([*map(of, sys.argv[1:])])"
    )
    with namespaces(1) as (place,):
        command = [*inside(place.name), sys.executable, "-c", script, place.address, "192.0.2.1"]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said == "['eth0', '']\n"
