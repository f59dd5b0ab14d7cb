from rljob_worker.forkserver.appearance import shown_arguments, shown_environment


def test_arguments_are_cut_short_or_filled_up_and_always_end() -> None:
    assert shown_arguments(["py", "-m", "x"], 10) == b"py\0-m\0x\0\0\0"
    assert shown_arguments(["python", "-m"], 8) == b"python\0\0"


def test_only_values_of_equal_length_take_the_place_of_old_ones() -> None:
    before = b"MARK=0000\0PATH=/bin\0EMPTY=\0odd\0"
    after = shown_environment(before, {"MARK": "cafe", "PATH": "/usr/bin", "EMPTY": "", "odd": "x"})
    assert after == b"MARK=cafe\0PATH=/bin\0EMPTY=\0odd\0"
