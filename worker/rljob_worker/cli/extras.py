"""What a plain install leaves out: a command that needs it names the extra that brings it."""

import re
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, distribution, requires

from rljob_worker.errors import InvalidJob


def require_extra(extra: str, command: str) -> None:
    """InvalidJob, with the fix, unless every package of the extra is installed in any version."""
    missing = missing_packages(requires("rljob") or (), extra, is_installed)
    if missing:
        raise InvalidJob(
            f"`{command}` needs packages that are not installed: {', '.join(missing)}; "
            f"pip install 'rljob[{extra}]' brings them"
        )


def missing_packages(requirements: Iterable[str], extra: str, is_there: Callable[[str], bool]) -> list[str]:
    """Names of the extra's packages that are not there.

    requirements: as the package's metadata lists them, such as `torch==2.13.0; extra == 'worker'`.
    """
    is_of_extra = re.compile(rf"""extra\s*==\s*['"]{re.escape(extra)}['"]""").search
    names = [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in requirements if is_of_extra(line)]
    return [name for name in names if not is_there(name)]


def is_installed(package: str) -> bool:
    """Whether this environment has a package of that name."""
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True
