"""What is free, of files that a kernel writes."""

from __future__ import annotations

from pathlib import Path

import torch

from rljob_worker.devices.memory import container_free, free_memory, host_free


def test_what_is_free_of_a_host_and_of_a_container(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       1000 kB\nMemAvailable:    600 kB\n")
    assert host_free(meminfo) == 600 * 1024
    assert container_free(tmp_path) == []
    for name, text in (("max", "1000\n"), ("current", "700\n"), ("stat", "anon 500\ninactive_file 150\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert container_free(tmp_path) == [450]
    (tmp_path / "memory.max").write_text("max\n")
    assert container_free(tmp_path) == []
    assert free_memory(torch.device("cpu"), 4) < host_free() / 2
