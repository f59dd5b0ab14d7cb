"""The real command in processes of its own: messages, exit codes. Jobs run with fake pods."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from click.shell_completion import ShellComplete

from rljob_api.tests.timeouts import TEST_TIMEOUT_SECONDS
from rljob_worker.cli.app import app
from rljob_worker.cli.validate import seen_here
from rljob_worker.rehearsal.tests import good_job
from rljob_worker.tests.documents import job_document, plan_of
from rljob_worker.tests.waiting import is_gone, pid_in
from rljob_worker.tests.warm import WarmProcess, run_warm

RLJOB = (sys.executable, "-m", "rljob_worker.cli")


def rljob(*arguments, cwd, **variables):
    """The command in a process of its own. variables: of its environment; None takes one away."""
    wide = os.environ | {"COLUMNS": "160", "HF_HUB_OFFLINE": "1"} | variables
    environment = {name: value for name, value in wide.items() if value is not None}
    return run_warm("rljob_worker.cli", *arguments, folder=cwd, environment=environment, timeout=TEST_TIMEOUT_SECONDS)


def write_job(folder, file="job.yaml", **options):
    """The job, and what it names beside it."""
    (folder / "some" / "data").mkdir(parents=True, exist_ok=True)
    (folder / "some" / "data" / "train.jsonl").write_text('{"prompt": "a"}\n' * 4)
    (folder / "rewards.py").write_text("def correct(row):\n    return 1.0\n")
    (folder / "some" / "model").mkdir(exist_ok=True)
    for name in ("tokenizer.json", "model.safetensors"):
        content = good_job.files()[f"model/{name}"]
        (folder / "some" / "model" / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    # of a size that it does not say
    (folder / "some" / "model" / "config.json").write_text('{"model_type": "llama"}')
    (folder / file).write_text(yaml.safe_dump(job_document(**options)))


FAKE = "rljob_worker.cli.tests.run_fake_pods"


def run_fake(folder, script, *arguments, job="job.yaml"):
    """`rljob run job.yaml` whose workers play a script."""
    return run_warm(FAKE, json.dumps(script), "run", job, *arguments, folder=folder, timeout=TEST_TIMEOUT_SECONDS)


TRAINS = {"*": [["metrics", {"step": 1, "reward/mean": 0.25}], ["checkpoint", 10]]}


@pytest.fixture(scope="module")
def succeeded(tmp_path_factory):
    """A folder with a job and its run, which has succeeded; copied by whoever changes it."""
    folder = tmp_path_factory.mktemp("succeeded")
    write_job(folder)
    done = run_fake(folder, TRAINS)
    assert done.returncode == 0, done.stderr
    return folder, done


def note_of(folder):
    return json.loads((folder / "runs" / "tiny" / "run.json").read_text())


@pytest.fixture
def ran(succeeded, tmp_path):
    """A folder of one's own with that run."""
    shutil.copytree(succeeded[0], tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_help_lists_the_commands(tmp_path):
    done = rljob("--help", cwd=tmp_path)
    assert done.returncode == 0
    for command in ("run", "plan", "validate", "status", "export", "new"):
        assert f"\n  {command} " in done.stdout


def test_help_imports_nothing_heavy(tmp_path):
    code = (
        "import sys\n"
        "from rljob_worker.cli.app import app\n"
        "app.main(['--help'], standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pyarrow', 'pydantic', 'rich', 'tensorboard'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_no_light_process_imports_torch_and_none_of_users_functions_pydantic():
    code = (
        "import sys\n"
        "import rljob_worker.rehearsal.functions.importing, rljob_worker.rewards.running.process\n"
        "assert not {'pydantic', 'aiohttp', 'numpy'} & set(sys.modules)\n"
        "import rljob_worker.cli.run, rljob_worker.cli.plan.show, rljob_worker.cli.status, rljob_worker.cli.export\n"
        "import rljob_worker.launcher.launching, rljob_worker.forkserver.__main__\n"
        "assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_new_job_is_valid_but_for_its_data(tmp_path):
    assert rljob("new", "mine", cwd=tmp_path).returncode == 0
    done = rljob("validate", "mine.yaml", cwd=tmp_path)
    assert done.returncode == 64
    assert "spec.data.train[0].path (line " in done.stderr and f"Put it at {tmp_path}/data/train.parquet" in done.stderr
    (tmp_path / "data").mkdir()
    rows = pa.table({"prompt": ["What is 6 * 7?"] * 16, "answer": ["42"] * 16})
    for name in ("train", "validation"):
        pq.write_table(rows, tmp_path / "data" / f"{name}.parquet")
    assert rljob("validate", "mine.yaml", cwd=tmp_path).returncode == 0
    again = rljob("new", "mine", cwd=tmp_path)
    assert again.returncode == 64 and again.stderr.startswith("rljob: mine.yaml exists already")


def test_every_mistake_of_every_file_is_listed_at_once(tmp_path):
    write_job(tmp_path, "good.yaml")
    document = job_document(seed="seven")
    document["spec"]["algorithm"]["groupsize"] = 4
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(document))
    done = rljob("validate", "good.yaml", "bad.yaml", "missing.yaml", cwd=tmp_path)
    assert done.returncode == 64
    assert done.stdout == "good.yaml: tiny is valid\n"
    assert "bad.yaml has 2 problems:" in done.stderr
    assert "spec.seed (line " in done.stderr and "spec.algorithm.groupsize (line " in done.stderr
    assert "groupSize" in done.stderr
    assert "there is no file missing.yaml" in done.stderr


def test_what_is_probably_not_meant_is_a_warning(tmp_path):
    write_job(tmp_path, training={"learningRate": 10.0})
    done = rljob("validate", "job.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    valid, warning = done.stdout.splitlines()
    assert valid == "job.yaml: tiny is valid" and warning.startswith("  warning: training.learningRate 10 is outside")


def test_programs_read_what_is_wrong_as_json(tmp_path):
    write_job(tmp_path, "good.yaml")
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(job_document(seed="seven")))
    done = rljob("validate", "good.yaml", "bad.yaml", "--json", cwd=tmp_path)
    assert done.returncode == 64
    good, bad = json.loads(done.stdout)
    assert good == {"file": "good.yaml", "job": "tiny", "problems": [], "unseen": [], "lacking": [], "warned": []}
    (problem,) = bad["problems"]
    assert (bad["job"], problem["path"], problem["found"]) == (None, "spec.seed", '"seven"') and problem["line"]


def test_a_valid_job_learns_what_this_machine_lacks_for_it(tmp_path):
    """It may be meant for another."""
    groups = [{"name": "train", "accelerator": {"profile": "nvidia-h100", "count": 2}}]
    write_job(tmp_path, workerGroups=groups)
    done = rljob("validate", "job.yaml", cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "job.yaml: tiny is valid"
    (reported,) = [line for line in lines if line.startswith("  not on this machine: ")]
    assert "spec.workerGroups (line " in reported and "no CUDA device for a pod of worker group train" in reported
    done = rljob("validate", "job.yaml", "--here", cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 64 and "no CUDA device for a pod of worker group train" in done.stderr
    assert "is valid" not in done.stdout + done.stderr
    done = rljob("run", "job.yaml", cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 64 and "no CUDA device for a pod of worker group train" in done.stderr


def test_accelerators_that_only_who_runs_on_them_can_count_are_reported(monkeypatch):
    monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    judge = {"name": "judge", "run": "mine:app", "workerGroup": {"accelerator": {"profile": "amd"}}}
    plan = plan_of(workerGroups=[{"name": "train", "accelerator": {"profile": "amd"}}], services=[judge])
    _, unseen = seen_here(plan)
    assert unseen == [
        "how many accelerators (amd) worker group train finds here: its workers count them",
        "how many accelerators (amd) service judge finds here: its copies count them",
    ]


def test_a_shell_completes_what_it_is_given(tmp_path):
    script = rljob("completion", "bash", cwd=tmp_path)
    assert script.returncode == 0 and "_RLJOB_COMPLETE=bash_complete" in script.stdout
    assert "'fish'" in rljob("completion", "csh", cwd=tmp_path).stderr


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (["new", "--example", "custom-"], ["custom-algorithm", "custom-filter", "custom-stage"]),
        (["samples", "su"], ["sums"]),
        (["report", "sums", "pr"], ["products"]),
        (["samples", "--runs-dir", "elsewhere", ""], ["there"]),
    ],
)
def test_a_shell_completes_names_of_examples_and_runs(tmp_path, monkeypatch, words, result):
    for folder in ("runs/sums", "runs/products", "runs/not-a-run", "elsewhere/there"):
        (tmp_path / folder).mkdir(parents=True)
        if "not" not in folder:
            (tmp_path / folder / "run.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    completed = ShellComplete(app, {}, "rljob", "_RLJOB_COMPLETE").get_completions(words[:-1], words[-1])
    assert [item.value for item in completed] == result


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nothing.yaml"], "rljob: there is no file nothing.yaml; `rljob new NAME`"),
        (["plan", "."], "rljob: . is a directory; name the job's YAML file"),
        (["validate", "binary.yaml"], "binary.yaml is not UTF-8 text (byte 0); save it as UTF-8"),
        (["validate", "syntax.yaml"], "this is not YAML"),
        (["validate", "empty.yaml"], "a file holds one job, found 0 documents"),
        (["run", "job.yaml", "--set", "stop.steps"], "an override is PATH=VALUE"),
        (["run", "job.yaml", "--set", "stop.steps=-1"], "spec.stop.steps (--set stop.steps=-1): "),
        (["run", "job.yaml", "--set", "data.train[0].path=./gone"], "(--set data.train[0].path=./gone)"),
        (["run", "job.yaml", "--resume", "7"], "rljob: --resume 7: there is no run to go on with"),
        (["run", "job.yaml", "--bogus"], "No such option '--bogus'"),
        (["run"], "Missing argument 'JOB.yaml'"),
        (["start"], "No such command 'start'"),
        (["new", "Not_A_Label"], "metadata.name"),
        (["new"], "name the new job, or an example"),
        (["new", "a", "--example", "b"], "name the new job, or an example"),
        (["new", "--example", "custom-stag"], "rljob: there is no example custom-stag; did you mean custom-stage?"),
        (["new", "mine", "--model", "m"], "--model and --data go together"),
        (["status", "ghost"], "rljob: no run ghost in runs; there are: none"),
        (["export", "ghost", "out"], "rljob: no run ghost in runs; there are: none"),
        (
            ["plan", "job.yaml", "--times", "updat=1"],
            "rljob: --times updat=1: there is no stage updat; did you mean update?",
        ),
        (["plan", "job.yaml", "--times", "update=-1", "--json"], "rljob: --times update=-1: write seconds from 0 to"),
        (["export", "ghost", "out", "--step", "x"], "Invalid value for '--step'"),
    ],
)
def test_a_users_mistake_is_one_message_and_64(tmp_path, arguments, message):
    write_job(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    (tmp_path / "syntax.yaml").write_text("a: [1, 2")
    (tmp_path / "empty.yaml").write_text("")
    done = rljob(*arguments, cwd=tmp_path)
    assert done.returncode == 64, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_plan_shows_stages_groups_edges_and_bytes(tmp_path):
    write_job(tmp_path, groups=[("train", 2, 2), ("rollout", 1, 4)])
    done = rljob("plan", "job.yaml", "--svg", "dag.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for text in ("train (lead)", "2 x 2", "dp=4", "rollout->reward", "weights/actor", "Buffer", "KiB"):
        assert text in done.stdout
    assert (tmp_path / "dag.svg").read_text().lstrip().startswith("<svg")


QWEN3_8B = {
    "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "tie_word_embeddings": False,
}  # fmt: skip


def write_large_job(folder, accelerators):
    """A model of 8 B parameters, of which only the config is here."""
    groups = [{"name": "train", "accelerator": {"profile": "nvidia-h100", "count": accelerators}}]
    write_job(folder, models=[{"name": "actor", "path": "large"}], workerGroups=groups, data={
        "train": [{"path": "some/data"}], "batchSize": 8,
    })  # fmt: skip
    (folder / "large").mkdir()
    (folder / "large" / "config.json").write_text(json.dumps(QWEN3_8B))


def test_plan_shows_what_a_worker_has_in_memory(tmp_path):
    write_large_job(tmp_path, 8)
    lines = [line.strip() for line in rljob("plan", "job.yaml", cwd=tmp_path).stdout.splitlines()]
    table = lines[lines.index("Memory of a worker of train") + 1 :]
    assert table[0].split() == ["load", "generate", "train", "sync", "checkpoint"]
    # two states of 4 bytes of 8,190,735,360 parameters, an eighth of it
    assert table[2].split()[:3] == ["optimizer", "7.6", "GiB"] and len(table) == 10


def test_plan_says_what_to_set_so_that_a_job_fits(tmp_path):
    write_large_job(tmp_path, 8)
    long = ["--set", "data.maxPromptTokens=400000", "--set", "data.batchSize=32", "--set", "dataBuffer.memory=32Gi"]
    done = rljob("plan", "job.yaml", "--fit", *long, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (
        "the job fits with the following: " in done.stderr
        and " s of training" in done.stderr
        and "Memory of a worker of train" in done.stdout
    )
    reported = next(line for line in done.stderr.splitlines() if line.startswith("that is"))
    again = rljob("plan", "job.yaml", "--fit", *long, *reported.split()[2:], cwd=tmp_path)
    assert "the job fits as it is" in again.stderr


def test_predictions_for_an_accelerator_of_unknown_speed_say_whose_they_are(tmp_path):
    write_large_job(tmp_path, 8)
    said = [
        rljob("plan", "job.yaml", "--fit", "--set", f"workerGroups.0.accelerator.profile={name}", cwd=tmp_path).stderr
        for name in ("metax-c500", "amd-mi300x")
    ]
    assert ["seconds are those of an H100: no speed is known of metax-c500" in item for item in said] == [True, False]


@pytest.mark.parametrize("command", ["plan", pytest.param("validate", marks=pytest.mark.slow), "run"])
def test_what_cannot_fit_is_refused_before_anything_starts(tmp_path, command):
    write_large_job(tmp_path, 1)
    done = rljob(command, "job.yaml", cwd=tmp_path)
    assert done.returncode == 64
    assert "spec.workerGroups[0]" in done.stderr and "79.6 GiB" in done.stderr
    assert "more replicas or accelerators" in done.stderr and not (tmp_path / "runs").exists()


def test_plan_shows_how_weights_go_and_what_they_take(tmp_path):
    groups = [("train", 4, 2), ("rollout", 1, 4)]
    write_job(tmp_path, groups=groups, data={"train": [{"path": "some/data"}], "batchSize": 8})
    shown = rljob("plan", "job.yaml", cwd=tmp_path).stdout.splitlines()
    # 1Gi: an eighth of it in 4 slots for each of 8 senders is 4 MiB a slot
    assert words_of(shown) == ["DataBuffer", "8", "of", "8", "workers", "128.0", "MiB", "(32", "x", "4.0", "MiB)"]
    shown = rljob("plan", "job.yaml", "--set", "weightSync.transport=Collective", cwd=tmp_path).stdout.splitlines()
    assert words_of(shown) == ["Collective", "4", "of", "8", "workers", "none"]


def words_of(lines):
    """The rows of the table of weights, without the engines."""
    (line,) = [line for line in lines if line.startswith("weights/actor")]
    return line.split()[3:]


@pytest.mark.parametrize("command", ["validate", pytest.param("plan", marks=pytest.mark.slow), "run"])
def test_memory_that_can_never_hold_the_weights_is_refused_before_anything_starts(tmp_path, command):
    write_job(tmp_path, groups=[("train", 2, 1), ("rollout", 1, 1)], dataBuffer={"memory": "12Mi"})
    done = rljob(command, "job.yaml", cwd=tmp_path)
    assert done.returncode == 64
    said = done.stdout + done.stderr
    assert "spec.dataBuffer.memory" in said and "64.0 MiB of weights" in said and "to at least 66Mi" in said
    assert not (tmp_path / "runs").exists()


def test_plan_as_json_is_a_plan(tmp_path):
    write_job(tmp_path)
    done = rljob("plan", "job.yaml", "--json", "--set", "metadata.name=other", cwd=tmp_path)
    assert json.loads(done.stdout)["job"] == "other"


def test_plan_draws_a_timeline_and_says_what_staleness_gains(tmp_path):
    write_job(tmp_path, groups=[("train", 1, 1), ("rollout", 1, 1)], rollout={"maxStaleness": 1})
    times = ("--times", "rollout=60,reward=2", "--times", "update=30,weights=3")
    done = rljob("plan", "job.yaml", *times, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *_, timeline = done.stdout.partition("Timeline of the steady state, at the times given\n")
    assert max(map(len, timeline.splitlines())) <= 100
    # generation is the slower: 60 + 2 s, in which training is idle for 32; in turn also 30 and 3
    assert " 0% idle" in timeline and "52% idle" in timeline and "[=" in timeline
    assert "A step takes 62 s with rollout.maxStaleness 1, and 95 s with 0: 1.53 times as many steps" in timeline
    assert "Without a time, and so taken to need 0 s: reference, advantage." in timeline
    # 4 versions exist at once, of a model of unknown size
    assert "1 version" in done.stdout and "4 versions" in done.stdout
    document = json.loads(rljob("plan", "job.yaml", "--json", *times, cwd=tmp_path).stdout)
    assert document["job"] == "tiny" and document["timeline"]["secondsPerStep"] == 62
    assert document["timeline"]["synchronousSecondsPerStep"] == 95


def test_a_reader_that_has_enough_is_no_error(tmp_path):
    write_job(tmp_path)
    done = subprocess.run(
        f"'{sys.executable}' -m rljob_worker.cli plan job.yaml --json | head -c 10; exit ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_ends_with_a_summary_and_is_then_finished(succeeded, ran):
    _, done = succeeded
    assert "step 1/10  reward 0.25" in done.stdout
    assert "tiny: succeeded after 1 of 10 steps" in done.stdout
    assert "  checkpoints runs/tiny/checkpoints (steps 10)" in done.stdout
    again = run_fake(ran, TRAINS)
    assert again.returncode == 0
    assert "is finished: 10 steps; raise stop.steps to train on" in again.stdout
    more = run_fake(ran, {"*": []}, "--set", "stop.steps=20")
    assert "going on from the checkpoint of step 10, with changes: stop.steps 10 -> 20" in more.stdout
    never = run_fake(ran, TRAINS, "--resume", "never")
    assert never.returncode == 64 and "holds a run already" in never.stderr


def test_a_failed_run_names_its_cause_on_standard_error(tmp_path):
    write_job(tmp_path)
    words = {"code": 65, "step": 2, "cause": "BadData: reward correct gave NaN for row 12"}
    done = run_fake(tmp_path, {"*": [["words", words], ["exit", 65]]})
    assert done.returncode == 65
    assert done.stderr.startswith("rljob: worker-train-0-0: BadData: reward correct gave NaN for row 12; exit code 65")
    listed = rljob("status", cwd=tmp_path).stdout.splitlines()
    assert listed[1].split()[:3] == ["tiny", "Failed", "0/10"]
    assert "BadData: reward correct gave NaN" in listed[1]
    assert "BadData: reward correct gave NaN" in rljob("status", "tiny", cwd=tmp_path).stdout


def test_runs_are_listed_newest_first(ran):
    note = note_of(ran)
    for name, seconds in (("aged", -1000.0), ("zesty", 1000.0)):
        (ran / "runs" / name).mkdir()
        changed = note | {"name": name, "started_seconds": note["started_seconds"] + seconds}
        (ran / "runs" / name / "run.json").write_text(json.dumps(changed))
    listed = rljob("status", cwd=ran).stdout.splitlines()
    assert [line.split()[0] for line in listed[1:]] == ["zesty", "tiny", "aged"]


def test_the_list_of_runs_tells_how_long_they_took_and_since_when_they_are(ran):
    """Begun 7,200 s before it was ended, an hour ago."""
    note = note_of(ran)
    ended = note["updated_seconds"] - 3600
    cause = "worker-train-0-0: " + "x" * 100
    changed = note | {"phase": "Failed", "exit_code": 65, "cause": cause}
    changed |= {"started_seconds": ended - 7200, "updated_seconds": ended}
    (ran / "runs" / "tiny" / "run.json").write_text(json.dumps(changed))
    heads, line = rljob("status", cwd=ran).stdout.splitlines()
    assert heads.split()[-3:] == ["DURATION", "AGE", "CAUSE"] and " 2h00m     3h   worker-train" in line
    detail = rljob("status", "tiny", cwd=ran).stdout
    assert "duration   2h00m\nage        3h\n" in detail and cause in detail
    narrow = rljob("status", cwd=ran, COLUMNS="80")
    assert [len(line) <= 80 for line in narrow.stdout.splitlines()] == [True, True] and "…" in narrow.stdout
    assert cause in rljob("status", cwd=ran, COLUMNS=None).stdout


def test_status_recognises_a_dead_supervisor(tmp_path):
    write_job(tmp_path)
    ready = tmp_path / "ready"
    script = {"*": [["pid", str(ready)], ["hang"]]}
    with (tmp_path / "said").open("w") as said:
        process = WarmProcess(
            FAKE, json.dumps(script), "run", "job.yaml", folder=tmp_path, stdout=said.fileno(), stderr=said.fileno()
        )
    try:
        pid_in(ready)
        running = rljob("status", "--json", cwd=tmp_path)
        assert json.loads(running.stdout)[0]["pid"] == process.pid
        assert json.loads(running.stdout)[0]["phase"] == "Starting"
        second = rljob("run", "job.yaml", cwd=tmp_path)
        assert second.returncode == 64 and f"is in use by process {process.pid}" in second.stderr
    finally:
        process.kill()
        process.wait(TEST_TIMEOUT_SECONDS)
    lost = json.loads(rljob("status", "tiny", "--json", cwd=tmp_path).stdout)
    assert (lost["phase"], lost["pid"], lost["metrics_url"]) == ("Lost", None, "")
    assert "died without a word" in rljob("status", "tiny", cwd=tmp_path).stdout


def test_a_run_that_ended_has_no_process_and_nobody_who_tells_its_metrics(succeeded):
    folder, _ = succeeded
    note = note_of(folder)
    assert note["pid"] and note["metrics_url"], "of the process that ended"
    (reported,) = json.loads(rljob("status", "--json", cwd=folder).stdout)
    assert (reported["phase"], reported["pid"], reported["metrics_url"]) == ("Succeeded", None, "")


def test_a_directory_that_is_no_run_is_left_alone(tmp_path):
    write_job(tmp_path)
    (tmp_path / "runs" / "tiny").mkdir(parents=True)
    (tmp_path / "runs" / "tiny" / "thesis.tex").write_text("")
    done = rljob("run", "job.yaml", cwd=tmp_path)
    assert done.returncode == 64 and "exists and is not a run of rljob; move it away" in done.stderr


def test_workers_get_absolute_paths_and_the_folder_of_the_yaml(tmp_path):
    folder = tmp_path / "project"
    good_job.write(folder)
    write_job(folder, models=[{"name": "actor", "path": "model"}])
    done = run_fake(folder, {"*": [["say_environment", "RLJOB_CODE"]]}, "--runs-dir", str(tmp_path / "elsewhere"))
    assert done.returncode == 0, done.stderr
    run = tmp_path / "elsewhere" / "tiny"
    spec = json.loads((run / "plan.json").read_text())["spec"]
    assert spec["models"][0]["path"] == str(folder / "model")
    assert spec["data"]["train"][0]["path"] == str(folder / "some/data")
    log = (run / "logs" / "attempt-1" / "worker-train-0-0.log").read_text()
    assert log.startswith(f"RLJOB_CODE={folder}")
    # relative still: what has moved together can go on
    assert yaml.safe_load((run / "job.yaml").read_text())["spec"]["models"][0]["path"] == "../../project/model"


def test_the_job_that_a_run_leaves_can_be_run_again_from_where_it_lies(ran):
    left = "runs/tiny/job.yaml"
    assert rljob("validate", left, cwd=ran).returncode == 0
    script = {"*": [["say_environment", "RLJOB_CODE"]]}
    again = run_fake(ran, script, "--set", "stop.steps=20", job=left)
    assert again.returncode == 0, again.stderr
    assert "going on from the checkpoint of step 10, with changes: stop.steps 10 -> 20" in again.stdout
    log = (ran / "runs/tiny/logs/attempt-2/worker-train-0-0.log").read_text()
    assert log.startswith(f"RLJOB_CODE={ran}\n")


def test_a_bug_of_ours_is_70_and_its_traceback_is_in_a_file(tmp_path):
    code = (
        "import click\n"
        "from rljob_worker.cli.output import run_and_exit\n"
        "@click.command()\n"
        "def app(): raise RuntimeError('boom')\n"
        "run_and_exit(app)\n"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 70
    assert done.stderr.startswith("rljob: a bug of ours, RuntimeError: boom; please report ")
    assert "Traceback" in next(tmp_path.glob("rljob-bug-*.log")).read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_ended_before_its_run_has_processes_says_130(tmp_path, number):
    write_job(tmp_path)
    importing = tmp_path / "importing"
    (tmp_path / "rewards.py").write_text(
        f"import os, pathlib, time\npathlib.Path({str(importing)!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n"
    )
    with (tmp_path / "errors").open("w+") as errors:
        process = WarmProcess("rljob_worker.cli", "run", "job.yaml", folder=tmp_path, stderr=errors.fileno())
        try:
            child = pid_in(importing)
            process.send_signal(number)
            assert process.wait(TEST_TIMEOUT_SECONDS) == 130 and is_gone(child)
        finally:
            process.kill()
        assert (tmp_path / "errors").read_text().strip() == ""
    assert not (tmp_path / "runs").exists()
