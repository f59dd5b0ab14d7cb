"""`rljob new`: a commented job to start from."""

from pathlib import Path

import click

from rljob_api.loading.starter import starter_yaml
from rljob_worker.errors import InvalidJob, StorageError


def write_starter(name: str) -> int:
    """Write NAME.yaml into the current directory; never over a file that exists."""
    path = Path(f"{name}.yaml")
    text = starter_yaml(name)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InvalidJob(f"{path} exists already; choose another name or remove it") from None
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    click.echo(f"wrote {path}; edit it, then `rljob plan {path}` and `rljob run {path}`")
    return 0
