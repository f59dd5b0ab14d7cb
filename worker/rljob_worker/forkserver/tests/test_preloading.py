"""Detection of open accelerators before forking."""

from pathlib import Path

from rljob_worker.forkserver.preloading import open_devices


def test_an_open_accelerator_is_told_from_what_every_process_opens(tmp_path: Path) -> None:
    for number, target in enumerate(("/dev/null", "/dev/pts/0", "/dev/nvidiactl", "/dev/accel/accel0", "pipe:[7]")):
        (tmp_path / str(number)).symlink_to(target)
    assert open_devices(tmp_path) == ["/dev/accel/accel0", "/dev/nvidiactl"]
    assert open_devices() == []
