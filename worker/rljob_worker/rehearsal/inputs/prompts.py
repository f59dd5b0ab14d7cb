"""Do the first rows of the data make prompts, and enough of them, and can a response contain the texts that end it?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from rljob_api.catalogue.columns import named_at, task_columns
from rljob_api.v1alpha1 import DatasetSpec, RLJobSpec
from rljob_api.vocabulary.data_url import scheme_of
from rljob_api.vocabulary.exit_codes import ExitCode
from rljob_api.vocabulary.problem import Problem
from rljob_worker.data.picture_files import ShownFiles
from rljob_worker.data.prompts import PromptEncoder
from rljob_worker.data.source import NoColumn
from rljob_worker.data.store_retry import StoreRetryPolicy
from rljob_worker.data.survey import column_text
from rljob_worker.errors import BadData, NotHere, RLJobError, WrongField
from rljob_worker.job_paths import JobPath
from rljob_worker.rehearsal.finding import Finding, finding_of
from rljob_worker.rehearsal.inputs.first_rows import (
    LOOK_RETRY_SECONDS,
    LOOK_ROWS,
    FirstRows,
    first_rows,
    first_stored_rows,
)
from rljob_worker.rehearsal.inputs.remote_paths import is_at_hand, is_unreachable, whereabouts
from rljob_worker.rehearsal.inputs.reward_rows import reward_rows
from rljob_worker.rehearsal.inputs.tokenizer import LightTokenizer, light_tokenizer
from rljob_worker.vision.job_budgets import picture_budget, video_budget
from rljob_worker.vision.pictures import BadPicture, decode
from rljob_worker.vision.processing import PictureProcessor
from rljob_worker.vision.videos import decode_frames, is_video, read_video_header

DECODED_ROWS = 32
"""Rows whose pictures are decoded; of the others that are looked at the headers are read."""


@dataclass
class InputCheck:
    """What was found of models and data, in the making."""

    environment: Mapping[str, str]
    """What opens stores and the hub."""
    found: list[Finding] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    lacking: list[Finding] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    """What rewards are tried on."""

    def note(self, path: str, error: RLJobError) -> None:
        """An error about what stands at this place of the job."""
        if isinstance(error, NotHere):
            self.lacking.append(finding_of(path, error))
        elif is_unreachable(error):
            self.unseen.append(str(error))
        else:
            self.found.append(finding_of(path, error))


def check_data(spec: RLJobSpec, folder: Path, models: Mapping[str, Path], check: InputCheck) -> None:
    """The first rows of every data set, as prompts where the tokenizer is among the models' files.

    models: directories by path in the job.
    """
    encoders = [encoder for policy in spec.policies for encoder in _encoder(spec, policy, models, check)]
    data = spec.data
    for kind, sources in (("train", data.train), ("validation", data.validation)):
        seen = [
            rows
            for i, source in enumerate(sources)
            if (rows := _rows(spec, folder, source, f"spec.data.{kind}[{i}].path", encoders, check)) is not None
        ]
        if len(seen) == len(sources) > 0:
            check.found += _too_long(spec, kind, seen) or _too_few(spec, kind, seen)


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Rows kept of one data set: how many stay for the policy that keeps fewest, as far as is known."""

    num_rows: int
    is_exact: bool
    longest: int
    """Tokens of the longest prompt that was seen, by any policy's tokenizer; 0 without one."""
    num_kept: int


@dataclass(frozen=True, slots=True)
class Encoder:
    """How a policy has prompts, and where in the job it stands: `spec.models[0]`."""

    at: str
    prompts: PromptEncoder


def _encoder(spec: RLJobSpec, policy: str, models: Mapping[str, Path], check: InputCheck) -> Iterator[Encoder]:
    """Nothing where its tokenizer cannot be had here."""
    at, model = next(
        ((f"spec.models[{i}]", item) for i, item in enumerate(spec.models) if item.name == policy), ("", None)
    )
    place = None if model is None else models.get(model.path)
    if model is None or place is None or not (place / "config.json").is_file():
        return  # other checks report that there is no model
    try:
        tokenizer = light_tokenizer(str(place))
        if tokenizer is None:
            check.unseen.append(f"the tokenizer of {model.path}, which has no tokenizer.json")
            return
        stop_problems = stop_findings(spec.rollout.stop, tokenizer)
        check.found += (stop_problem for stop_problem in stop_problems if stop_problem not in check.found)
        prompts = PromptEncoder(
            tokenizer,
            apply_chat_template=spec.data.apply_chat_template,
            system_prompt=spec.data.system_prompt,
            template_arguments=model.chat_template,
            pictures=_processor(spec, place),
        )
        yield Encoder(at, prompts)
    except RLJobError as error:
        check.found.append(finding_of(_to_blame(spec, f"{at}.path", at, error), error))


def _processor(spec: RLJobSpec, place: Path) -> PictureProcessor | None:
    """What a model here sees of pictures; None for a job without. Raises InvalidJob."""
    if not _shown_columns(spec):
        return None
    return PictureProcessor.load(str(place), picture_budget(spec.data), videos=video_budget(spec.data))


def _shown_columns(spec: RLJobSpec) -> list[str]:
    """Columns of pictures and videos."""
    return [name for name in (spec.data.images_column, spec.data.videos_column) if name is not None]


def _to_blame(spec: RLJobSpec, path: str, model_at: str, error: RLJobError) -> str:
    """The field that an error is about; `path` where the error does not say. model_at: whose template it may be."""
    if isinstance(error, NoColumn):
        return named_at(spec, error.name)
    if isinstance(error, WrongField):
        return f"spec.{error.field}".replace("spec.models.", f"{model_at}.")
    return path


def _rows(
    spec: RLJobSpec, folder: Path, source: DatasetSpec, path: str, encoders: Sequence[Encoder], check: InputCheck
) -> KeptRows | None:
    is_stored = scheme_of(source.path) is not None
    if is_stored and not is_at_hand(source.path, check.environment):
        check.unseen.append(f"{source.path}, which is {whereabouts(source.path)}")
        return None
    here = JobPath(path, source.path, is_data=True)
    place = str(here.beside(folder)) if here.exists(folder) else source.path
    columns = [spec.data.prompt_column, *task_columns(spec)]
    model_at, lengths = "", list[list[int]]()
    try:
        names = list(dict.fromkeys([*columns, *_shown_columns(spec)]))
        if is_stored:
            rows = first_stored_rows(source, names, spec.data.batch_size)
        else:
            rows = first_rows(place, names, spec.data.batch_size)
        _check_texts(rows, columns[1:])
        check.warned += _answered(rows, columns[0])
        pictures = _pictures(spec, place, rows)
        check.warned += _unseen(spec, rows, pictures)
        prompts: Sequence[str] = ()
        for encoder in encoders:
            model_at = encoder.at
            ids, texts, _ = encoder.prompts.encode(rows.values[columns[0]], rows.where, pictures)
            lengths.append([len(tokens) for tokens in ids])
            prompts = prompts or texts
        if path.startswith("spec.data.train") and not check.rows:
            values = rows.values[columns[0]]
            prompts = prompts or [column_text(value, columns[0], rows.where(i)) for i, value in enumerate(values)]
            check.rows = reward_rows(spec, source, rows, prompts, pictures)
    except RLJobError as error:
        check.note(_to_blame(spec, path, model_at, error), error)
        return None
    lengths = lengths or [[0] * len(rows.values[columns[0]])]
    kept = min(sum(length <= spec.data.max_prompt_tokens for length in item) for item in lengths)
    return KeptRows(rows.num_rows, rows.is_all, max(chain.from_iterable(lengths), default=0), kept)


def _check_texts(rows: FirstRows, columns: Sequence[str]) -> None:
    """Raises for what is not text in columns of the data that are carried along."""
    for name in columns:
        for i, value in enumerate(rows.values[name]):
            column_text(value, name, rows.where(i))


def _answered(rows: FirstRows, column: str) -> list[str]:
    """Advice on prompts that have their answer already: the model would begin another turn behind it."""
    ending = [i for i, prompt in enumerate(rows.values[column]) if _ends_with_assistant(prompt)]
    if not ending:
        return []
    return [
        f"{rows.where(ending[0])} ends with a turn of the assistant in {column}, as {len(ending)} of the "
        f"{rows.num_seen} rows looked at do, and the model begins another turn behind it; leave that turn out of the "
        "prompt, or put it into a column of its own"
    ]


def _ends_with_assistant(prompt: Any) -> bool:
    last = prompt[-1] if isinstance(prompt, list) and prompt else None
    return isinstance(last, Mapping) and last.get("role") == "assistant"


def _pictures(spec: RLJobSpec, place: str, rows: FirstRows) -> list[list[bytes]] | None:
    """What the first rows show, the first of which is decoded; None for a job without. Raises BadData."""
    if not _shown_columns(spec):
        return None
    data, retry_policy = spec.data, StoreRetryPolicy(LOOK_RETRY_SECONDS)
    files = ShownFiles.of(place, data.images_column, data.videos_column, data.image.allow_http, retry_policy)
    pictures = files.read(rows.values, rows.where)
    for i, row in enumerate(pictures[:DECODED_ROWS]):
        for encoded in row:
            try:
                _decode(encoded)
            except BadPicture as error:
                raise BadData(f"{rows.where(i)}: {error}") from error
    return pictures


def _unseen(spec: RLJobSpec, rows: FirstRows, pictures: Sequence[Sequence[bytes]] | None) -> list[str]:
    """Advice on a data set that shows nothing: no check of a run finds a policy blind that is never shown a picture."""
    if pictures is None or any(pictures):
        return []
    columns = " and ".join(_shown_columns(spec))
    return [
        f"{rows.path} shows nothing: {columns} is empty in all {rows.num_seen} rows looked at; write pictures there, "
        "or leave data.imagesColumn and data.videosColumn out"
    ]


def _decode(encoded: bytes) -> None:
    """A picture, or the first and the last frame of a video. Raises BadPicture."""
    if is_video(encoded):
        decode_frames(encoded, [0, len(read_video_header(encoded).times) - 1])
    else:
        decode(encoded)


def _too_long(spec: RLJobSpec, kind: str, seen: Sequence[KeptRows]) -> list[Finding]:
    """Nothing stays of what is read as one: all data sets of a kind, or each one that is drawn from by its weight."""
    weights = [dataset.weight for dataset in spec.data.train] if kind == "train" else []
    drawn_from: dict[str, Sequence[KeptRows]] = {
        f"data.{kind}[{i}]": [seen[i]] for i, item in enumerate(weights) if item
    }
    return [
        _nothing_left(spec, name, kept)
        for name, kept in (drawn_from or {f"data.{kind}": seen}).items()
        if not any(item.num_kept for item in kept)
    ]


def _nothing_left(spec: RLJobSpec, name: str, seen: Sequence[KeptRows]) -> Finding:
    longest = max(item.longest for item in seen)
    is_exact = all(item.is_exact for item in seen)
    which = "every prompt" if is_exact else f"every one of the first {LOOK_ROWS} prompts"
    message = f"{which} of {name} is longer than this; the longest has {longest} tokens"
    fix = f"Write {longest} or more, or shorten the prompts."
    problem = Problem("spec.data.maxPromptTokens", str(spec.data.max_prompt_tokens), message, fix)
    return Finding(problem, ExitCode.BAD_DATA)


def _too_few(spec: RLJobSpec, kind: str, seen: Sequence[KeptRows]) -> list[Finding]:
    """Fewer rows than a batch has, counting those that are left out where all of them were seen."""
    is_exact = all(item.is_exact for item in seen)
    num_rows = sum(item.num_kept if is_exact else item.num_rows for item in seen)
    if kind != "train" or num_rows >= spec.data.batch_size:
        return []
    message = f"a batch has more prompts than data.train, which has {num_rows}"
    return [Finding(Problem("spec.data.batchSize", str(spec.data.batch_size), message, f"Write {num_rows} or less."))]


def stop_findings(stops: Sequence[str], tokenizer: LightTokenizer) -> Iterator[Finding]:
    """stops: `rollout.stop`. Whether any tokens make a text is known to the engines, which put them together."""
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    special = {token.content: token_id for token_id, token in added.items() if token.special}
    for i, text in enumerate(stops):
        if text in special:
            message = "this is a special token, which is not text in a response"
            fix = f"Write stopTokenIds: [{special[text]}]."
            yield Finding(Problem(f"spec.rollout.stop[{i}]", text, message, fix))
