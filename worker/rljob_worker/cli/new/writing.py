"""`rljob new`: a commented job to start from, or a shipped example with all that it needs."""

import shutil
import subprocess
import sys
from pathlib import Path

import click

import rljob_worker
from rljob_api.loading.starter import starter_yaml
from rljob_api.vocabulary.problem import nearest
from rljob_worker.cli.extras import require_extra
from rljob_worker.errors import InvalidJob, StorageError

TINY = "arithmetic"
"""The folder in which examples look for the tiny model and its data."""

GRADERS = ("reward-model", "judge")
"""What examples with services look for besides."""


def write_starter(
    name: str,
    model: str | None,
    data: str | None,
    validation: str | None,
    prompt: str | None = None,
    answer: str | None = None,
    reward: str | None = None,
) -> int:
    """Write NAME.yaml into the current directory, of a model and data where they are named; never over a file."""
    beginning = None
    if model is not None or data is not None:
        if model is None or data is None:
            raise InvalidJob("--model and --data go together: the data are looked at as prompts of the model")
        if reward is not None and not all(reward.rpartition(":")):
            raise InvalidJob(f"--reward {reward}: write module:function, such as my_reward:short of my_reward.py")
        require_extra("worker", "rljob new --model --data")
        from rljob_worker.cli.new.starter_job import (  # a plain install lacks what it reads with
            NamedParts,
            beginning_of,
        )

        beginning = beginning_of(model, data, validation, NamedParts(prompt, answer, reward))
    elif prompt or answer or reward:
        raise InvalidJob("--prompt, --answer and --reward say what is in the data: name these with --model and --data")
    path = Path(f"{name}.yaml")
    _write(path, starter_yaml(name, beginning))
    if model is not None and not Path(model).is_dir():
        click.echo(f"{model} is not a directory here: it is taken for a name of the Hub, which `rljob validate` asks")
    click.echo(f"wrote {path}; edit it, then `rljob plan {path}` and `rljob run {path}`")
    return 0


def write_example(name: str) -> int:
    """Write a shipped example into the current directory, with its modules, its data and its model."""
    folder = examples_folder()
    names = example_names()
    if name not in names:
        near = nearest(name, names)
        hint = f"did you mean {near}?" if near else f"there are: {', '.join(names)}"
        raise InvalidJob(f"there is no example {name}; {hint}")
    # what it says of itself in the repository, said from here
    text = (folder / f"{name}.yaml").read_text(encoding="utf-8").replace("examples/", "")
    if needs_tiny := f"path: {TINY}/" in text:
        require_extra("worker", "rljob new --example")
    graders = ["--graders"] if any(f"path: {TINY}/{grader}" in text for grader in GRADERS) else []
    if graders:
        require_extra("serve", f"rljob run {name}.yaml")
    path = Path(f"{name}.yaml")
    if not (path.is_file() and path.read_bytes() == text.encode()):  # who stopped while a model was made asks again
        _write(path, text)
    for beside in files_beside(folder, text):
        if not Path(beside.name).exists():
            shutil.copyfile(beside, beside.name)
    if needs_tiny and subprocess.call([sys.executable, "-P", "-m", "rljob_worker.tiny", "--out", TINY, *graders]):
        raise StorageError(f"the models and data of the example could not be made in {TINY}; see above")
    click.echo(f"wrote {name}.yaml; `rljob run {name}.yaml` runs it")
    return 0


def files_beside(folder: Path, text: str) -> list[Path]:
    """Modules and data of a folder that the text of a job in it names."""
    modules = [path for path in folder.glob("*.py") if f"{path.stem}:" in text]
    return sorted(modules + [path for path in folder.glob("*.jsonl") if f"path: {path.name}" in text])


def example_names() -> list[str]:
    """Those that are shipped."""
    return sorted(path.stem for path in examples_folder().glob("*.yaml"))


def examples_folder() -> Path:
    """Beside the package in a wheel, in the repository where it runs from there."""
    package = Path(rljob_worker.__file__).parent
    packed = package / "examples"
    return packed if packed.is_dir() else package.parents[1] / "examples"


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InvalidJob(f"{path} exists already; choose another name or remove it") from None
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
