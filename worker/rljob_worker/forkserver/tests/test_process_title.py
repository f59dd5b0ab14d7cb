"""Process titles: arguments and environment as the system shows them."""

from rljob_worker.forkserver.process_title import shown_arguments, shown_environment


def test_arguments_are_cut_short_or_filled_up_and_always_end() -> None:
    assert shown_arguments(["py", "-m", "x"], 10) == b"py\0-m\0x\0\0\0"
    assert shown_arguments(["python", "-m"], 8) == b"-m".ljust(8, b"\0")
    assert shown_arguments(["python"], 4) == b"pyt\0"


def test_a_module_is_shown_where_its_whole_command_finds_no_room():
    # a pod's launcher, `python -m rljob_worker.launcher`, has 32 bytes for a worker's 47
    command = ["/usr/local/bin/python3", "-P", "-m", "rljob_worker.runtime"]
    assert shown_arguments(command, 32) == b"-P\0-m\0rljob_worker.runtime\0".ljust(32, b"\0")
    assert shown_arguments(command, 36) == b"python3\0-P\0-m\0rljob_worker.runtime\0".ljust(36, b"\0")


def test_only_values_of_equal_length_take_the_place_of_old_ones() -> None:
    before = b"MARK=0000\0PATH=/bin\0EMPTY=\0odd\0"
    after = shown_environment(before, {"MARK": "cafe", "PATH": "/usr/bin", "EMPTY": "", "odd": "x"})
    assert after == b"MARK=cafe\0PATH=/bin\0EMPTY=\0odd\0"
