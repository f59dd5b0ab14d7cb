"""The subcommands and their options; what they do is in the module of the same name."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rljob.commands import COMMANDS, cluster_options, jobs_of

if TYPE_CHECKING:
    from rljob_worker.local.pods.pods import Commands

JOB = click.argument("job", metavar="JOB.yaml", type=click.Path(path_type=Path))
SET = click.option("--set", "overrides", multiple=True, metavar="PATH=VALUE", help="Change a field, e.g. stop.steps=5.")
RUNS_DIR = click.option(
    "--runs-dir", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Where runs are kept."
)


def _run_names(context: click.Context, _: click.Parameter, begun: str) -> list[str]:
    """Names of the runs there are, for shell completion."""
    from rljob_worker.rundir.directory import runs_in

    names = (run.name for run in runs_in(context.params.get("runs_dir") or Path("runs")))
    return [name for name in names if name.startswith(begun)]


def _example_names(_: click.Context, __: click.Parameter, begun: str) -> list[str]:
    from rljob_worker.cli.new.writing import example_names

    return [name for name in example_names() if name.startswith(begun)]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="rljob", prog_name="rljob")
def app() -> None:
    """Reinforcement-learning post-training of language models, as one job."""


@app.command()
@JOB
@click.option(
    "--resume", metavar="auto|never|STEP", help="Go on with an earlier run of this name.  [default: the job's own]"
)
@SET
@RUNS_DIR
@click.pass_obj
def run(commands: "Commands | None", job: Path, resume: str | None, overrides: tuple[str, ...], runs_dir: Path) -> int:
    """Run a job on this machine.

    Ctrl-C once stops after the current step with a checkpoint; twice stops now.
    """
    from rljob_worker.cli.run import run_job

    return run_job(job, overrides, runs_dir, resume, commands)


@app.command()
@JOB
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="PATH=VALUE,VALUE,...",
    help="Values to try, e.g. training.learningRate=1e-6,3e-6; of several, all combinations.",
)
@RUNS_DIR
@click.pass_obj
def sweep(commands: "Commands | None", job: Path, overrides: tuple[str, ...], runs_dir: Path) -> int:
    """Run a job with several values of some fields, one run after the other, and compare them.

    \b
      rljob sweep job.yaml --set training.learningRate=1e-6,3e-6,1e-5

    A run that fails does not end the sweep. Ctrl-C stops it; the same command goes on.
    """
    from rljob_worker.cli.sweep import sweep_job

    return sweep_job(job, overrides, runs_dir, commands)


@app.command()
@JOB
@click.option(
    "--rank-file",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A host's name or address on each line, that of host 0 first.",
)
@click.option(
    "--wait",
    "seconds",
    metavar="SECONDS",
    type=click.FloatRange(min=1),
    default=600,
    show_default=True,
    help="How long hosts wait for each other.",
)
@click.option(
    "--resume", metavar="auto|never|STEP", help="Go on with an earlier run of this name.  [default: the job's own]"
)
@SET
@RUNS_DIR
@click.pass_obj
def launch(
    commands: "Commands | None",
    job: Path,
    rank_file: Path | None,
    seconds: float,
    resume: str | None,
    overrides: tuple[str, ...],
    runs_dir: Path,
) -> int:
    """Run a job on many machines without Kubernetes: start this on each, once.

    \b
    Which host this is, of how many, and where host 0 is, say
      srun               under Slurm: srun --ntasks-per-node=1 rljob launch JOB.yaml
      RANK, WORLD_SIZE, MASTER_ADDR [MASTER_PORT]
                         as torchrun and its like set them, one process for each host
      --rank-file FILE   a host on each line

    All launchers get the same job, the same RLJOB_TOKEN (a secret: export RLJOB_TOKEN=$(openssl rand -hex 32)) and the
    same runs directory, on a file system that they share. Host 0 shows the run; all leave with the same exit code: 75
    where a machine is gone and the launch is to be begun again, 76 where it was stopped with a checkpoint, by Ctrl-C or
    SIGTERM on any host.
    """
    from rljob_worker.cli.extras import require_extra

    require_extra("worker", "rljob launch")  # before what it is made of is imported, which a plain install lacks
    from rljob_worker.cli.launch import Launching, launch_job
    from rljob_worker.local.pods.pods import Commands

    return launch_job(Launching(job, overrides, runs_dir, resume, seconds, commands or Commands()), rank_file)


@app.command()
@JOB
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Draw the DAG into this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.option("--fit", "fits", is_flag=True, help="First say what to set so that it fits into memory, and plan that.")
@click.option(
    "--times",
    multiple=True,
    metavar="STAGE=SECONDS,...",
    help="Draw a timeline with these times, e.g. rollout=60,update=30,weights=3 (a weight sync); repeatable.",
)
@SET
def plan(
    job: Path, svg: Path | None, as_json: bool, fits: bool, times: tuple[str, ...], overrides: tuple[str, ...]
) -> int:
    """Show what would run where, and what would cross.

    With --times also when: a line per worker group, how long each is idle, seconds per step, and what
    rollout.maxStaleness gains. Stages without a time take 0 s. A run has the times of its stages in metrics.jsonl, as
    time/STAGE_seconds.
    """
    from rljob_worker.cli.plan.show import show_plan

    return show_plan(job, overrides, svg, times, as_json=as_json, fits=fits)


@app.command()
@click.argument("jobs", metavar="JOB.yaml...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--no-data", is_flag=True, help="Look at no data, on a machine that does not have it.")
@click.option("--here", is_flag=True, help="What this machine lacks for the jobs is a mistake, as for `rljob run`.")
@SET
def validate(jobs: tuple[Path, ...], as_json: bool, no_data: bool, here: bool, overrides: tuple[str, ...]) -> int:
    """Check jobs with their data, models and functions; list every mistake with its fix."""
    from rljob_worker.cli.validate import validate_jobs

    return validate_jobs(jobs, overrides, as_json, looks_at_data=not no_data, here=here)


@app.command()
@click.argument("run", required=False, shell_complete=_run_names)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@RUNS_DIR
@cluster_options
def status(run: str | None, as_json: bool, runs_dir: Path, **cluster: Any) -> int:
    """Show what runs or ran here, or one RUN in detail; with --context or --namespace the jobs of a cluster, too."""
    from rljob_worker.cli.status import show_status

    return show_status(run, runs_dir, as_json, jobs_of(cluster) if any(cluster.values()) else None)


@app.command()
@click.argument("run", shell_complete=_run_names)
@click.option("--step", type=click.IntRange(min=0), help="Only of this step.")
@click.option(
    "--where", multiple=True, metavar="CONDITION", help="Such as 'reward<0.5' or 'response~answer'; repeatable."
)
@click.option("--sort", metavar="FIELD", help="Smallest first; -FIELD: largest first.  [default: newest steps first]")
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="How many at most.")
@click.option("--tokens", is_flag=True, help="With log-probabilities, masks and advantages of single tokens.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per line.")
@RUNS_DIR
def samples(run: str, runs_dir: Path, tokens: bool, as_json: bool, **question: Any) -> int:
    """Read what RUN asked and answered: prompts, responses, rewards, tokens."""
    from rljob_worker.cli.samples import SampleQuery, show_samples

    return show_samples(run, runs_dir, SampleQuery(**question), as_json=as_json, tokens=tokens)


@app.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=_run_names)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="[default: report.html in the RUN's folder]"
)
@click.option("--serve", is_flag=True, help="Show it to a browser on this machine, refreshed while runs go on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of --serve.  [default: one that is free]")
@RUNS_DIR
def report(runs: tuple[str, ...], out: Path | None, serve: bool, port: int, runs_dir: Path) -> int:
    """Write one HTML page with the curves, samples and jobs of all RUNs; it needs no network."""
    from rljob_worker.cli.report import serve_report, write_report

    return serve_report(runs, runs_dir, port) if serve else write_report(runs, runs_dir, out)


@app.command()
@click.argument("run", shell_complete=_run_names)
@click.argument("out")
@click.option("--step", type=click.IntRange(min=0), help="The checkpoint to take.  [default: the newest]")
@click.option("--merged", is_flag=True, help="Where an adapter was trained, write the model that it makes.")
@click.option("--model", help="Of those that RUN trains, such as critic.  [default: the policy]")
@click.option("--push", metavar="OWNER/NAME", help="Upload it to the Hugging Face hub, too.")
@click.option("--private", is_flag=True, help="A model that --push makes is private.")
@RUNS_DIR
def export(
    run: str,
    out: str,
    step: int | None,
    merged: bool,
    model: str | None,
    push: str | None,
    private: bool,
    runs_dir: Path,
) -> int:
    """Write a checkpoint of RUN as a Hugging Face model with its card, or its adapter as peft loads it.

    OUT is a directory, or a folder of a store such as s3://bucket/models/mine.
    """
    from rljob_worker.cli.export import export_checkpoint

    return export_checkpoint(run, out, step, runs_dir, merged=merged, model=model, push=push, private=private)


@app.command()
@click.argument("name", required=False)
@click.option(
    "--example",
    metavar="EXAMPLE",
    shell_complete=_example_names,
    help="Write a shipped example with its data and model, ready to run.",
)
@click.option("--model", metavar="PATH", help="Fill in this model; with --data.")
@click.option("--data", metavar="PATH", help="Look at these data and fill in columns, reward and sizes; with --model.")
@click.option("--validation", metavar="PATH", help="Data to validate on.")
@click.option("--prompt", metavar="COLUMN", help="Of --data, its prompts.  [default: one with a usual name]")
@click.option("--answer", metavar="COLUMN", help="Of --data, what the reward reads.  [default: one with a usual name]")
@click.option("--reward", metavar="MODULE:FUNCTION", help="Your own reward.  [default: one that compares with answers]")
def new(
    name: str | None,
    example: str | None,
    model: str | None,
    data: str | None,
    validation: str | None,
    prompt: str | None,
    answer: str | None,
    reward: str | None,
) -> int:
    """Write NAME.yaml, a commented job to start from, or a shipped example."""
    from rljob_worker.cli.new.writing import write_example, write_starter

    if (name is None) == (example is None):
        raise click.UsageError("name the new job, or an example: `rljob new my-job`, `rljob new --example NAME`")
    if name is None:
        return write_example(str(example))
    return write_starter(name, model, data, validation, prompt, answer, reward)


@app.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print what completes commands and options: source <(rljob completion bash)."""
    from click.shell_completion import get_completion_class

    completion_class = get_completion_class(shell)
    assert completion_class is not None, "click knows these shells"
    click.echo(completion_class(app, {}, "rljob", "_RLJOB_COMPLETE").source())
    return 0


for command in COMMANDS:
    app.add_command(command)
