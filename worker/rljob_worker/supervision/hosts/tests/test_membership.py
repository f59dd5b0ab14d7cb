"""Who this host is, from the environment of the launchers."""

import pytest

from rljob_worker.errors import InvalidJob
from rljob_worker.supervision.hosts.membership import Membership, hosts_in, membership_of

SLURM = {
    "SLURM_PROCID": "2", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "gpu[01-04]", "SLURM_JOB_ID": "12345",
}  # fmt: skip
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}


def membership(environment, hosts=(), here=()):
    return membership_of(environment, hosts, set(here).__contains__)


def refusal(environment, hosts=(), here=()):
    with pytest.raises(InvalidJob) as caught:
        membership(environment, hosts, here)
    return str(caught.value)


def test_slurm_says_it_and_every_job_has_a_port_of_its_own():
    names = ("gpu01", "gpu02", "gpu03", "gpu04")
    assert membership(SLURM) == Membership(2, 4, "gpu01", 20_000 + 2345, names, "SLURM_NTASKS")
    assert membership(SLURM).called(3) == "host 3 (gpu04)"


def test_a_step_of_slurm_has_nodes_of_its_own():
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "gpu[02-03]", "SLURM_PROCID": "1"}
    assert (
        membership(SLURM | step).names == ("gpu02", "gpu03")
        and membership(SLURM | step).source == "SLURM_STEP_NUM_TASKS"
    )


def test_what_a_person_says_of_host_0_wins_over_slurm():
    chosen = membership(SLURM | {"MASTER_ADDR": "ib-gpu01", "MASTER_PORT": "30000"})
    assert (chosen.address, chosen.port, chosen.host) == ("ib-gpu01", 30000, 2)


def test_torchrun_and_its_like_say_it():
    assert membership(TORCHRUN) == Membership(1, 2, "node0", 29500, (), "WORLD_SIZE")
    # a job of Slurm in which somebody started processes in a way of his own
    assert membership(SLURM | TORCHRUN).num_hosts == 2
    assert membership(TORCHRUN).called(1) == "host 1"


def test_a_rank_file_says_it_in_its_order():
    hosts = hosts_in("node0  # the first\n\n# spare\n10.0.0.7\n", "ranks")
    result = membership({"RANK": "5", "WORLD_SIZE": "9"}, hosts, here=["10.0.0.7"])
    assert result == Membership(1, 2, "node0", 29_400, ("node0", "10.0.0.7"), "the rank file")


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "nobody says which host this is; start one launcher on each host"),
        (SLURM | {"SLURM_NTASKS": "32"}, "SLURM_NTASKS is 32 and SLURM_JOB_NODELIST has 4 nodes (gpu01, gpu02, gpu03, "
            "gpu04): a launcher is for a whole node; start one on each with `srun --ntasks-per-node=1"),
        (SLURM | {"SLURM_NTASKS": "four"}, "SLURM_NTASKS is 'four', expected a whole number"),
        (SLURM | {"SLURM_JOB_NODELIST": "gpu[1-"}, "'gpu[1-' is not a list of nodes"),
        (SLURM | {"SLURM_JOB_NODELIST": ""}, "SLURM_JOB_NODELIST is not set; it goes with SLURM_PROCID, which is"),
        (SLURM | {"SLURM_PROCID": "4"}, "SLURM_PROCID is 4 and SLURM_NTASKS is 4: hosts count from 0"),
        (TORCHRUN | {"RANK": "2"}, "RANK is 2 and WORLD_SIZE is 2"),
        (TORCHRUN | {"RANK": "-1"}, "RANK is '-1', expected a whole number from 0"),
        (TORCHRUN | {"WORLD_SIZE": "0"}, "WORLD_SIZE is 0, expected 1 to 65,536 hosts"),
        (TORCHRUN | {"WORLD_SIZE": ""}, "WORLD_SIZE is not set; it goes with RANK, which is"),
        (TORCHRUN | {"MASTER_ADDR": ""}, "MASTER_ADDR is not set; it goes with RANK"),
        (TORCHRUN | {"MASTER_PORT": "0"}, "MASTER_PORT is 0, expected a port"),
        (TORCHRUN | {"MASTER_PORT": "99999"}, "MASTER_PORT is 99999, expected a port"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "8"}, "LOCAL_WORLD_SIZE is 8: a launcher starts the workers of its host"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(environment, words):
    assert words in refusal(environment)


def test_a_machine_that_is_not_in_the_rank_file_or_twice_is_refused():
    assert "not in the rank file" in refusal({}, ("a", "b"))
    assert "a, b; leave one" in refusal({}, ("a", "b"), here=["a", "b"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# nobody\n", "names no host"),
        ("a\nb slots=8\n", "line 2: 'b slots=8'"),
        ("a\nb\na\n", "line 3: a is on line 1"),
    ],
)
def test_a_rank_file_that_is_none_is_refused_with_its_line(text, words):
    with pytest.raises(InvalidJob, match="^hosts") as caught:
        hosts_in(text, "hosts")
    assert words in str(caught.value)
