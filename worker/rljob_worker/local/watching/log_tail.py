"""A log, read while somebody writes it."""

from pathlib import Path


class LogTail:
    """Whole lines, each of them once."""

    def __init__(self, path: Path) -> None:
        """path: need not be there yet."""
        self._path = path
        self._read_bytes = 0

    def lines(self) -> list[str]:
        """Those that were written since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return whole.decode(errors="replace").splitlines()
