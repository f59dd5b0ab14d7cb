"""A job of a model, rows of data and functions, which is also there as YAML."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rljob_api.loading.overrides import apply_overrides
from rljob_api.loading.starter import StarterInputs
from rljob_api.vocabulary.problem import InvalidJobError
from rljob_worker.cli.extras import require_extra
from rljob_worker.cli.from_python.callbacks import CALLBACK_SECONDS
from rljob_worker.cli.from_python.functions import columns_read, module_name, module_of, name_of, pickle_into
from rljob_worker.cli.from_python.notebook import in_notebook
from rljob_worker.cli.from_python.running import Run, run
from rljob_worker.cli.views.plain import format_step
from rljob_worker.errors import BadData, InvalidJob
from rljob_worker.local.watching.progress import RunProgress
from rljob_worker.users_code.function import as_name
from rljob_worker.users_code.pickled import FOLDER

if TYPE_CHECKING:
    import pandas

    from rljob.client import Client
    from rljob.job import Job

Reward = Callable[..., Any] | str | Mapping[str, Any]
"""A function, its name as `module:function`, or the fields of an entry of `rewards`, whose `run` is either."""

FUNCTIONS = "job_functions"
"""The module that sources of a notebook's functions go into."""
TRAIN, VALIDATION = "train.parquet", "validation.parquet"
"""Files that rows of data go into."""


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """What `rljob.train` gives back."""

    run: Run

    @property
    def directory(self) -> Path:
        return self.run.directory

    @property
    def phase(self) -> str:
        """Succeeded or Stopped."""
        return self.run.phase

    @property
    def metrics(self) -> pandas.DataFrame:
        """One row for each step, which is its index."""
        import pandas

        return pandas.DataFrame(self.run.metrics).set_index("step")

    @property
    def samples(self) -> pandas.DataFrame:
        """Rows to look at: prompts, responses and rewards."""
        import pandas

        return pandas.DataFrame(self.run.samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A job whose data and functions may be objects of this program."""

    model: str
    data: Any
    rewards: tuple[Reward, ...]
    prompt_column: str | None = None
    validation: Any = None
    algorithm: str = "GRPO"
    steps: int = 100
    batch_size: int | None = None
    group_size: int = 8
    settings: Mapping[str, Any] = field(default_factory=dict)
    name: str = "training"
    folder: Path = Path()
    """Where modules of the user's own are."""

    def run(
        self,
        *,
        runs_dir: str | Path = "runs",
        resume: str | None = None,
        on_step: Callable[[int, Mapping[str, float]], object] | None = None,
        on_phase: Callable[[str], object] | None = None,
        on_message: Callable[[str], object] | None = print,
        progress: bool | None = None,
        callback_seconds: float | None = CALLBACK_SECONDS,
    ) -> TrainingResult:
        """Run it on this machine to its end, as `rljob.run` does; what it reads is kept in RUNS_DIR/NAME.inputs.
        Without callbacks its steps are a table in a notebook, and printed elsewhere."""
        require_extra("worker", "rljob.train")
        is_plain = on_step is None and on_phase is None and on_message is print
        progress = is_plain and in_notebook() if progress is None else progress
        inputs = (Path(runs_dir) / f"{self.name}.inputs").absolute()
        inputs.mkdir(parents=True, exist_ok=True)
        body = self._body(inputs, str(inputs), lambda function: pickle_into(inputs, function))
        body["spec"]["env"] = [{"name": FOLDER, "value": str(inputs)}, *body["spec"].get("env", [])]
        return TrainingResult(
            run(
                body, folder=self.folder, runs_dir=runs_dir, resume=resume,
                on_step=on_step or (None if progress else _printed(on_message, self.steps)), on_phase=on_phase,
                on_message=on_message, progress=progress, callback_seconds=callback_seconds,
            )
        )  # fmt: skip

    def to_yaml(self) -> str:
        """The job as `save` writes it."""
        with tempfile.TemporaryDirectory() as folder:
            return self.save(folder).read_text(encoding="utf-8")

    def save(self, folder: str | Path) -> Path:
        """Write NAME.yaml into a folder, and beside it the data and the module of what is named by no path; functions
        of modules of the user's own are named. Raises InvalidJob for a function without a source."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        own: list[Callable[..., Any]] = []

        def by_source(function: Callable[..., Any]) -> str:
            own.append(function)
            return f"{FUNCTIONS}:{function.__name__}"

        body = self._body(place, "", by_source)
        if own:
            (place / f"{FUNCTIONS}.py").write_text(module_of(own), encoding="utf-8")
        path = place / f"{self.name}.yaml"
        path.write_text(yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
        return path

    def submit(self, client: Client | None = None) -> Job:
        """Create it on a cluster. Raises InvalidJob for data that pods cannot read, and functions without a source."""
        from rljob.client import Client

        for name, value in (("data", self.data), ("validation", self.validation)):
            if value is not None and not isinstance(value, str | Path):
                raise InvalidJob(f"{name} are rows of this program, which pods cannot read; save them where they can")
        with tempfile.TemporaryDirectory() as folder:
            path = self.save(folder)
            if self._names_modules():
                for module in self.folder.glob("*.py"):
                    (Path(folder) / module.name).write_bytes(module.read_bytes())
            code = folder if any(Path(folder).glob("*.py")) else None
            return (client or Client()).submit(path, code=code)

    def _names_modules(self) -> bool:
        """Whether functions of modules in `folder` are named."""
        names = [str(reward["run"]).partition(":")[0] for reward in self._rewards((), lambda function: FUNCTIONS)]
        return any((self.folder / f"{name}.py").is_file() for name in names)

    def _body(self, inputs: Path, prefix: str, named: Callable[[Callable[..., Any]], str]) -> dict[str, Any]:
        """The job as an object. inputs: where rows are written.   prefix: how the job names that folder; none, if its
        file is in it.   named: what the job calls a function that no module has."""
        from rljob_worker.cli.from_python.tables import write_table  # a plain install lacks what it writes with
        from rljob_worker.cli.new.starter_job import sized
        from rljob_worker.rehearsal.inputs.first_rows import data_set_columns

        def path_of(value: Any, name: str) -> tuple[str, str]:
            """Where rows can be read now, and what the job says."""
            if isinstance(value, str | Path):
                there = self.folder / value
                text = str(there.absolute()) if there.exists() else str(value)
                return text, text
            write_table(value, inputs / name)
            return str(inputs / name), str(Path(prefix) / name)

        readable, train = path_of(self.data, TRAIN)
        there = data_set_columns(readable)
        column = self.prompt_column or _prompt_column(readable, there)
        _require_column(column, there)
        model = self.folder / self.model
        model_path = str(model.absolute()) if model.is_dir() else self.model
        begun = sized(StarterInputs(model_path, readable, None, column))
        columns = [name for name in there if name != column]
        validation = None if self.validation is None else path_of(self.validation, VALIDATION)[1]
        return self._composed(replace(begun, train=train, validation=validation), self._rewards(columns, named))

    def _rewards(self, columns: Sequence[str], named: Callable[[Callable[..., Any]], str]) -> list[dict[str, Any]]:
        """Entries of `rewards`, of which functions get the columns that they read."""
        entries = list[dict[str, Any]]()
        for reward in self.rewards:
            entry = dict(reward) if isinstance(reward, Mapping) else {"run": reward}
            function = entry.get("run")
            if callable(function):
                run = module_name(function) or named(function)
                read = [] if "column" in entry or "columns" in entry else columns_read(function, columns)
                entry = {"name": name_of(function), **entry, "run": run} | ({"columns": read} if read else {})
            entry.setdefault("name", as_name(str(entry.get("run", "")).rpartition(":")[2]))
            entries.append(entry)
        names = [entry["name"] for entry in entries]
        if twice := {name for name in names if names.count(name) > 1}:
            raise InvalidJob(f"two rewards are called {', '.join(sorted(twice))}; give one as {{'run': f, 'name': …}}")
        return entries

    def _composed(self, begun: StarterInputs, rewards: list[dict[str, Any]]) -> dict[str, Any]:
        spec: dict[str, Any] = {
            "models": [{"name": "actor", "path": begun.model}],
            "data": {
                "train": [{"path": begun.train}],
                **({"validation": [{"path": begun.validation}]} if begun.validation else {}),
                "promptColumn": begun.prompt_column,
                "applyChatTemplate": begun.applies_template,
                "batchSize": self.batch_size or begun.batch_size,
                "maxPromptTokens": begun.max_prompt_tokens,
            },
            "rewards": rewards,
            "algorithm": {"name": self.algorithm, "groupSize": self.group_size},
            "workerGroups": [{"name": "train", "replicas": 1, "accelerator": {"profile": "cpu", "count": 1}}],
            "rollout": {"maxResponseTokens": begun.max_response_tokens},
            "stop": {"steps": self.steps},
        }
        body = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": self.name}, "spec": spec}
        overrides = [f"{path}={json.dumps(value)}" for path, value in self.settings.items()]
        changed, problems = apply_overrides(body, overrides)
        if problems:
            raise InvalidJobError(problems)
        result: dict[str, Any] = changed
        return result


def _prompt_column(data: str, there: Sequence[str]) -> str:
    """The column that looks like prompts. Raises BadData."""
    from rljob_worker.cli.new.starter_job import prompt_column_of

    try:
        return prompt_column_of(data)
    except BadData as error:
        names = ", ".join(there)
        message = f"prompt_column: no column of the data looks like prompts; name one of those there are: {names}"
        raise BadData(message) from error


def _require_column(name: str, there: Sequence[str]) -> None:
    """Names with dots reach into records. Raises BadData."""
    if name not in there and name.partition(".")[0] not in there:
        from rljob_worker.data.source import nearest_of  # a plain install lacks what it reads with

        raise BadData(f"prompt_column: the data have no column {name!r}; {nearest_of(name, there, 'they have')}")


def _printed(tell: Callable[[str], object] | None, steps: int) -> Callable[[int, Mapping[str, float]], object] | None:
    """A line for each step, as `rljob run` has it."""
    if tell is None:
        return None
    progress = RunProgress(total_steps=steps)
    return lambda step, metrics: tell(format_step({"step": step, **metrics}, progress))
