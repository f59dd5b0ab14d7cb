"""`python -m rljob_worker.checkpoint.export RUN OUT --step N`: a policy of a checkpoint, or its critic, as a Hugging
Face directory, or its adapter as one that peft loads; on a disk, or in a store."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rljob_api.planning.plan import EnginePlan, Plan
from rljob_api.vocabulary import keys
from rljob_worker.checkpoint.manifest import Committed, committed, damage
from rljob_worker.checkpoint.writer import engine_folder
from rljob_worker.errors import InvalidJob, RLJobError, StorageError
from rljob_worker.rundir.plan import read_plan
from rljob_worker.storage.paths import StoragePath, storage_path, upload

log = logging.getLogger("rljob_worker.checkpoint.export")  # also where this is a process of its own

GENERATION_CONFIG = "generation_config.json"
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
"""What a model that sees has beside its tokenizer."""
CONFIGURATIONS = ("config.json", "adapter_config.json")
"""By one of these a folder is known for a model, or for an adapter."""


def export_run(run_dir: StoragePath, out: StoragePath, step: int, *, merged: bool, model: str | None = None) -> None:
    """Write what a model was at `step`, for any number of ranks that wrote the checkpoint: weights, configuration,
    tokenizer and processor, or where it trains an adapter that one with tokenizer and processor, unless it is to be
    merged into the model. model: None for the policy of a run with one.

    What goes to a store is whole on this machine before. Raises InvalidJob for a step without checkpoint and for a
    model that the run does not train, StorageError when the checkpoint is damaged or `out` cannot be written.
    """
    from rljob_worker.engines.models.sources.mirror import with_mirrors

    with tempfile.TemporaryDirectory() as scratch:
        plan = with_mirrors(read_plan(run_dir / keys.PLAN_KEY), Path(scratch) / "cache")
        if isinstance(out, Path):
            export_plan(plan, run_dir, out, step, merged=merged, model=model)
            return
        folder = Path(scratch) / "out"
        export_plan(plan, run_dir, folder, step, merged=merged, model=model)
        try:
            upload(folder, out, last=CONFIGURATIONS)
        except OSError as error:
            raise StorageError(f"cannot write {out}: {error.strerror or error}") from error


def export_plan(
    plan: Plan, run_dir: StoragePath, out: Path, step: int, *, merged: bool, model: str | None = None
) -> None:
    """Export a run by a plan whose models are on this machine."""
    engine = _engine_of(plan, chosen_model(plan, model))
    if merged and engine.adapter is None:
        raise InvalidJob(f"--merged: {run_dir} trains no adapter; its whole model is exported without the option")
    if engine.adapter is not None and plan.has_value_head(engine) and not merged:
        raise InvalidJob(
            f"--model {engine.model}: its adapter goes with a head, which peft knows nothing of; write --merged, for "
            "the model that they make"
        )
    folder = checkpoint_of(run_dir, step).path / "engines" / engine_folder(engine.name)
    log.info("exporting step %d of %s", step, run_dir)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if engine.adapter is None or merged:
            export_model(plan, engine, folder, out)
        else:
            from rljob_worker.engines.fsdp.export.adapter_files import export_adapter

            export_adapter(folder, out)
        copy_tokenizer(engine.path, out)
        copy_files(engine.path, out, PROCESSOR_FILES)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"cannot write {out}: {error.strerror or error}") from error


def chosen_model(plan: Plan, model: str | None) -> str:
    """Without a name the policy. Raises InvalidJob where there are several."""
    policies = plan.spec.policies
    if model is None and len(policies) > 1:
        raise InvalidJob(f"the run trains several policies; write --model with one of {', '.join(policies)}")
    return policies[0] if model is None else model


def _engine_of(plan: Plan, model: str) -> EnginePlan:
    trained = {engine.model: engine for engine in plan.engines if engine.trainable}
    if model not in trained:
        raise InvalidJob(f"--model {model}: the run does not train it; there is {', '.join(sorted(trained))}")
    return trained[model]


def export_model(plan: Plan, engine: EnginePlan, checkpoint: StoragePath, out: Path) -> None:
    """Weights, with an adapter merged into them, in the precision of the job, and configuration."""
    import torch

    from rljob_worker.engines.fsdp.export.directory import export_directory
    from rljob_worker.engines.fsdp.settings import DTYPES
    from rljob_worker.engines.models import Adapter, DrawnWeights, WeightFiles
    from rljob_worker.engines.planned_model import empty_model, layer_library_of

    dtype, adapter = DTYPES[plan.precision], Adapter.of(engine)
    model, layers = empty_model(plan, engine, engine.path, dtype), layer_library_of(engine, torch.device("cpu"))
    base: WeightFiles | DrawnWeights | None = None
    if adapter is not None:
        is_drawn = engine.initialise == "Random"
        base = DrawnWeights.of(model, plan.spec.seed) if is_drawn else WeightFiles.find(engine.path)
    export_directory(model, checkpoint, out, dtype, adapter=adapter, base=base, layers=layers)
    copy_files(engine.path, out, (GENERATION_CONFIG,))


def checkpoint_of(run_dir: StoragePath, step: int) -> Committed:
    """The whole checkpoint of a step."""
    result = next((item for item in committed(run_dir / "checkpoints") if item.step == step), None)
    if result is None:
        raise InvalidJob(f"{run_dir} has no checkpoint of step {step}")
    problem = damage(result)
    if problem is not None:
        raise StorageError(f"the checkpoint of step {step} is damaged: {problem}; export another step")
    return result


def copy_tokenizer(model_path: str, out: Path) -> None:
    """Tokenizer files beside the weights; loaded and saved, so that a hub name works like a directory."""
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(model_path).save_pretrained(out)


def copy_files(model_path: str, out: Path, names: Sequence[str]) -> None:
    """Those that the model has, as they are: what people give theirs, transformers may read and would refuse to write,
    and pictures are to be read as they were in training."""
    from transformers.utils import cached_file

    for name in names:
        result = cached_file(model_path, name, _raise_exceptions_for_missing_entries=False)
        if result is not None:
            shutil.copyfile(result, out / name)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=storage_path)
    parser.add_argument("out", type=storage_path)
    parser.add_argument("--step", type=int, required=True)
    parser.add_argument("--merged", action="store_true")
    parser.add_argument("--model")
    options = parser.parse_args()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    logging.basicConfig(format="%(message)s")
    logging.getLogger("rljob_worker").setLevel(logging.INFO)
    try:
        export_run(options.run, options.out, options.step, merged=options.merged, model=options.model)
    except RLJobError as error:
        print(f"rljob: {error}", file=sys.stderr)
        return int(error.exit_code)
    print(f"wrote {options.out} (step {options.step})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
