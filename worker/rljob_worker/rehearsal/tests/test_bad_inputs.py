"""Jobs that cannot run, each with one mistake: none is accepted, none ends in a traceback, each names what to do."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rljob_worker.cli.validate import verdict_on
from rljob_worker.rehearsal.functions.importing_process import ImportingProcess
from rljob_worker.rehearsal.tests.good_job import CONFIG, TEMPLATE, lines, rows, weights, write
from rljob_worker.rehearsal.tests.warm_imports import WarmImporting
from rljob_worker.weight_index import INDEX

TRAIN, MODEL = "data/train.jsonl", "model/"
REWARD = "rewards.0."


def parquet(table):
    sink = io.BytesIO()
    pq.write_table(pa.table(table), sink)
    return sink.getvalue()


def config(**changes):
    return json.dumps({"chat_template": TEMPLATE} | changes)


def module(text):
    return {"mine.py": text}


def stage(**fields):
    own = {"name": "own", "run": "mine:stage", "after": ["rollout"], "reads": ["response_ids"], "writes": ["extra"]}
    return {
        "dag": {
            "stages": [
                {"name": "rollout", "run": "Rollout", "models": ["actor"]},
                {"name": "reward", "run": "Reward", "after": ["rollout"]},
                own | fields,
                {"name": "advantage", "run": "Advantage", "after": ["reward", "own"]},
                {"name": "update", "run": "UpdatePolicy", "models": ["actor"], "after": ["advantage"]},
            ]
        }
    }


def estimator(run, **more):
    return {"algorithm.advantage": {"estimator": run} | more}


def loss(run):
    return {"algorithm.loss": {"name": run}}


SCORE = "def score(row, scale): return 1.0\n"


def talks(**fields):
    return {"rollout.conversation": {"confinement": "Off"} | fields}


ARM = """
import numpy as np
from types import SimpleNamespace

class Arm:
    action_space = SimpleNamespace(low=-np.ones(2), high=np.ones(2))

    def reset(self, seed, options):
        return np.zeros(2), {}

    def step(self, action):
        return np.zeros(2), 0.0, False, False, {"success": False}
"""


def acts(run, **fields):
    return {"rollout.simulator": {"run": run, "columns": []} | fields}


def wants_template(template):
    return {"model/tokenizer_config.json": config(chat_template=template)}


def graded(path, **options):
    """A second reward that is a model of the job's own."""
    mine = {"name": "mine", "run": "mine:score", "column": "answer", "options": {"scale": 2.0}}
    taste = {"name": "good", "run": "RewardModel", "model": "taste", "options": options}
    return {"models": [{"name": "actor", "path": "model"}, {"name": "taste", "path": path}], "rewards": [mine, taste]}


def adapter(*targets):
    return {"models.0.adapter": {"rank": 4, "targets": list(targets)}}


NAMES = {"weight_map": dict.fromkeys(["model.layers.0.self_attn.o_proj.weight", "model.norm.weight"], "a.safetensors")}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0f\nsize 9\n"


def classifier(**changes):
    """Its files."""
    return {
        "taste/config.json": json.dumps(CONFIG | {"id2label": {"0": "good"}} | changes),
        "taste/model.safetensors": b"\x02" + bytes(7) + b"{}",
        "taste/tokenizer_config.json": "{}",
    }


CHAT = {"data.applyChatTemplate": True}
GLIMPSE = {"prompt": "a", "answer": "1"}

# name: (files that are replaced, fields that are, words of the problem)
CASES = {
    # the data
    "no file": ({TRAIN: None}, {}, "there is no such file"),
    "no folder": ({}, {"data.train.0.path": "gone/train.jsonl"}, "there is no such file"),
    "no file of a pattern": ({}, {"data.train.0.path": "data/*.parquet"}, "there is no such file"),
    "a name of the hub": ({}, {"data.train.0.path": "openai/gsm8k"}, "hf://datasets/openai/gsm8k to read a data set"),
    "an empty file": ({TRAIN: ""}, {}, "train.jsonl is empty"),
    "blank lines": ({TRAIN: "\n\n"}, {}, "has no rows"),
    "an empty table": ({TRAIN: None, "data/train.parquet": parquet({"prompt": pa.array([], "string")})},
        {"data.train.0.path": "data/train.parquet"}, "has no rows"),
    "a file of another kind": ({"data/train.csv": "prompt\na\n"}, {"data.train.0.path": "data/train.csv"},
        "a data set is parquet files"),
    "files of two kinds": ({"both/a.jsonl": "{}", "both/b.parquet": parquet({"prompt": ["a"]})},
        {"data.train.0.path": "both"}, "holds json and parquet files"),
    "several splits": ({"saved/dataset_dict.json": "{}", "saved/train/state.json": "{}"},
        {"data.train.0.path": "saved"}, "Name one: "),
    "a damaged state": ({"saved/state.json": "{}"}, {"data.train.0.path": "saved"}, "is not what save_to_disk writes"),
    "text in a parquet file": ({"data/train.parquet": "hello"}, {"data.train.0.path": "data/train.parquet"},
        "train.parquet cannot be read"),
    "half a parquet file": ({"data/train.parquet": parquet({"prompt": ["a"]})[:60]},
        {"data.train.0.path": "data/train.parquet"}, "train.parquet cannot be read"),
    "text in a gzip file": ({"data/train.jsonl.gz": "hello"}, {"data.train.0.path": "data/train.jsonl.gz"},
        "cannot be read: BadGzipFile"),
    "a line that is not JSON": ({TRAIN: '{"prompt": "a", "answer": "1"}\n{"prompt": '}, {}, "line 2 of"),
    "a line that is not an object": ({TRAIN: "[1]\n"}, {}, "is a JSON int, not an object"),
    "a line of text": ({TRAIN: "hello\n"}, {}, "line 1 of"),
    "no prompt column": ({TRAIN: lines([{"question": "a", "answer": "1"}])}, {}, "has no column 'prompt'"),
    "a prompt column that is misspelt": ({}, {"data.promptColumn": "promt"}, "Did you mean 'prompt'?"),
    "no reward column": ({TRAIN: lines([{"prompt": "a"}])}, {}, "has no column 'answer'"),
    "a reward column that is misspelt": ({}, {REWARD + "column": "anwser"}, "Did you mean 'answer'?"),
    "a reward column of parquet": ({"data/t.parquet": parquet({"prompt": ["a"] * 9})},
        {"data.train.0.path": "data/t.parquet"}, "has no column 'answer'"),
    "a record without the field": ({TRAIN: lines([{"prompt": "a", "answer": {"value": 1}}] * 5)},
        {REWARD + "column": "answer.text"}, "it has answer.value"),
    "a field of a record that is misspelt": ({TRAIN: lines([{"prompt": "a", "meta": {"truth": {"answer": "1"}}}] * 5)},
        {REWARD + "column": "meta.truth.anwser"}, "Did you mean 'meta.truth.answer'?"),
    "a record that lacks its field in one row": ({TRAIN: lines([{"prompt": "a", "meta": {"answer": "1"}}] * 4
        + [{"prompt": "a", "meta": {}}])}, {REWARD + "column": "meta.answer"}, "row 5 of"),
    "a column that only validation lacks": ({"data/validation.jsonl": lines([{"prompt": "a"}])}, {},
        "validation.jsonl has no column 'answer'"),
    "an answer that is null": ({TRAIN: lines([GLIMPSE, {"prompt": "a", "answer": None}] * 4)}, {},
        "row 2 of"),
    "a prompt that is a number": ({TRAIN: lines([GLIMPSE, {"prompt": 3, "answer": "1"}] * 4)}, {},
        "the prompt is a int"),
    "a prompt that is null": ({TRAIN: lines([{"prompt": None, "answer": "1"}] * 5)}, {}, "the prompt is nothing"),
    "a prompt that is empty": ({TRAIN: lines([{"prompt": " ", "answer": "1"}] * 5)}, {}, "row 1 of"),
    "a prompt that is an empty list": ({TRAIN: lines([{"prompt": [], "answer": "1"}] * 5)}, {}, "an empty list"),
    "a message without content": ({TRAIN: lines([{"prompt": [{"role": "user"}], "answer": "1"}] * 5)}, {},
        "a chat message needs 'content'"),
    "a message without role": ({TRAIN: lines([{"prompt": [{"content": "a"}], "answer": "1"}] * 5)}, {},
        "a chat message needs 'role'"),
    "prompts that are all too long": ({}, {"data.maxPromptTokens": 1, "data.train": [{"path": "data/long.jsonl"}]},
        "there is no such file"),
    "every prompt too long": ({TRAIN: lines([{"prompt": "a b c", "answer": "1"}] * 5)}, {"data.maxPromptTokens": 2},
        "every prompt of data.train is longer than this; the longest has 3 tokens"),
    "every validation prompt too long": (
        {"data/validation.jsonl": lines([{"prompt": "a b c d", "answer": "1"}] * 5)}, {"data.maxPromptTokens": 3},
        "every prompt of data.validation is longer"),
    "every prompt of a data set with a weight too long": (
        {"data/long.jsonl": lines([{"prompt": "a b c d", "answer": "1"}] * 5)},
        {"data.maxPromptTokens": 3, "data.train": [{"path": item, "weight": 1} for item in (TRAIN, "data/long.jsonl")]},
        "every prompt of data.train[1] is longer than this; the longest has 4 tokens"),
    "a batch that is larger than the data": ({}, {"data.batchSize": 16}, "has 12"),
    "a batch that is larger than what is left": (
        {TRAIN: lines(rows(12))}, {"data.maxPromptTokens": 1, "data.batchSize": 6},
        "has 4"),
    "a batch that is larger than a table": ({"data/t.parquet": parquet({"prompt": ["a"] * 3, "answer": ["1"] * 3})},
        {"data.train.0.path": "data/t.parquet"}, "which has 3"),
    "a system prompt without chat": ({}, {"data.systemPrompt": "be brief"}, "data.systemPrompt needs chat messages"),
    "two system prompts": (
        {TRAIN: lines([{"prompt": [{"role": "system", "content": "a"}], "answer": "1"}] * 5)},
        {"data.systemPrompt": "be brief"}, "begins with a system message"),
    # tokenizer and model
    "no tokenizer": ({MODEL + "tokenizer.json": None}, {}, "no tokenizer can be loaded from"),
    "a damaged tokenizer": ({MODEL + "tokenizer.json": "{}"}, {}, "tokenizer.json is not a tokenizer"),
    "a tokenizer that is not JSON": ({MODEL + "tokenizer.json": "hello"}, {}, "tokenizer.json is not a tokenizer"),
    "damaged settings of a tokenizer": ({MODEL + "tokenizer_config.json": "{"}, {},
        "tokenizer_config.json cannot be read"),
    "settings that are a list": ({MODEL + "tokenizer_config.json": "[]"}, {}, "holds a list in place of settings"),
    "no chat template": ({MODEL + "tokenizer_config.json": "{}"}, CHAT, "has no chat template"),
    "messages without a chat template": (
        {MODEL + "tokenizer_config.json": "{}",
         TRAIN: lines([{"prompt": [{"role": "user", "content": "a"}], "answer": "1"}] * 5)}, {},
        "has no chat template"),
    "a template that refuses": (wants_template("{{ raise_exception('no users') }}"), CHAT,
        "refuses the messages: no users"),
    "a template that is not a template": (wants_template("{% for %}"), CHAT, "refuses the messages"),
    "an argument that no template reads": ({}, CHAT | {"models.0.chatTemplate": {"thinking": True}}, "is never read"),
    "no model": ({}, {"models.0.path": "./gone"}, "there is no such file"),
    "a directory without a model": ({"other/notes.txt": "a"}, {"models.0.path": "other"}, "has no config.json"),
    "a file for a model": ({}, {"models.0.path": TRAIN}, "it is a file, and a model is a directory"),
    "no run to begin from": ({}, {"checkpoint": {"initFrom": "runs/gone"}}, "there is no such file"),
    "a damaged config": ({MODEL + "config.json": "{"}, {}, "config.json cannot be read"),
    "a config of no model": ({MODEL + "config.json": "{}"}, {}, "names no model_type"),
    "no weights": ({MODEL + "model.safetensors": None}, {}, "has no weights as safetensors"),
    "weights of another format": ({MODEL + "model.safetensors": None, MODEL + "pytorch_model.bin": "a"}, {},
        "has no weights as safetensors"),
    "a lost shard": ({MODEL + "model.safetensors.index.json": json.dumps({"weight_map": {"a": "model-2.safetensors"}})},
        {}, "model-2.safetensors of them cannot be found"),
    "an index without names": ({MODEL + "model.safetensors.index.json": '{"weight_map": ["a.safetensors"]}'},
        {}, "its weight_map is not a table of tensors and their files"),
    "a damaged index": ({MODEL + "model.safetensors.index.json": "{"}, {}, "index.json cannot be read"),
    "a file of weights that is a pointer": ({MODEL + "model.safetensors": POINTER}, {}, "`git lfs pull` in its folder"),
    "half a file of weights": ({MODEL + "model.safetensors": b"\xff" + bytes(7) + b"{"}, {},
        "is not a safetensors file"),
    "weights that are cut off": ({MODEL + "model.safetensors": weights(embed_tokens__weight=[16, 32])[:-9]}, {},
        "and its header speaks of"),
    "weights of another vocabulary": ({MODEL + "config.json": json.dumps(CONFIG | {"vocab_size": 17})}, {},
        "model.embed_tokens.weight is [16, 32] in its files, but config.json makes it [17, 32]"),
    "weights of fewer layers": ({MODEL + "config.json": json.dumps(CONFIG | {"num_hidden_layers": 3})}, {},
        "its files have 1 layers, but config.json makes 3"),
    "a model that the engines do not know": ({MODEL + "config.json": json.dumps(CONFIG | {"model_type": "mamba"})}, {},
        "the engines do not know models of type mamba"),
    "a quantized model": (
        {MODEL + "config.json": json.dumps(CONFIG | {"quantization_config": {"quant_method": "gptq"}})}, {},
        "its weights are quantized by gptq"),
    "an adapter beside no layer": ({}, adapter("up_porj"), "Did you mean up_proj? There are q_proj, up_proj."),
    "an adapter beside a norm": ({}, adapter("input_layernorm"), "matches no linear layer in the decoder of model"),
    "an adapter beside the embedding": ({}, adapter("embed_tokens"), "matches no linear layer"),
    "an adapter beside part of a name": ({}, adapter("proj"), "matches no linear layer"),
    "an adapter of a model in several files": (
        {MODEL + "model.safetensors": None, MODEL + "a.safetensors": "", MODEL + INDEX: json.dumps(NAMES)},
        adapter("q_proj"), "There are o_proj."),
    "a stop token that the model does not have": ({}, {"rollout.stopTokenIds": [3, 16]}, "/model are 0 to 15"),
    "a special token as a text": ({}, {"rollout.stop": ["b", "<|end|>"]}, "Write stopTokenIds: [9]."),
    "no run where one is to begin": ({}, {"checkpoint": {"initFrom": "data"}}, "is neither a run directory"),
    "responses beyond the positions": ({}, {"rollout.maxResponseTokens": 5000}, "positions"),
    "a model of a reward with two outputs": (classifier(id2label={"0": "bad", "1": "good"}), graded("taste"),
        "it has 2 outputs, and the model of reward good has 1"),
    "a model of a reward that was a policy": ({}, graded("model"), "it has 2 outputs"),
    "a model of a reward without a tokenizer": (classifier() | {"taste/tokenizer_config.json": None}, graded("taste"),
        "taste has no tokenizer, with which reward good writes its texts"),
    "no model of a reward": ({}, graded("./gone"), "there is no such file"),
    "a tokenizer of a reward that is not there": (classifier(), graded("taste", tokenizer="./gone"),
        "there is no such file"),
    # rewards
    "no reward module": ({"mine.py": None}, {}, "no module 'mine'"),
    "a reward module that is misspelt": ({}, {REWARD + "run": "mien:score"}, "no module 'mien'"),
    "a reward that is misspelt": ({}, {REWARD + "run": "mine:scor"}, "Did you mean score"),
    "no reward of that name": (module("x = 1\n"), {}, "has no 'score'"),
    "a reward that is a number": ({}, {REWARD + "run": "mine:NUMBER"}, "is a int, not a function"),
    "a syntax error": (module("def score(row:\n"), {}, "SyntaxError"),
    "an indentation error": (module("def score(row):\nreturn 1\n"), {}, "SyntaxError"),
    "a module that raises": (module("raise RuntimeError('no key')\n"), {}, "RuntimeError: no key at"),
    "a module that divides by zero": (module("def score(row): return 1\n\n1 / 0\n"), {}, "mine.py:3"),
    "a module that exits": (module("import sys\nsys.exit(3)\n"), {}, "SystemExit: 3"),
    "a module that ends its process": (module("import os\nos._exit(7)\n"), {},
        "the import ended its process (exit code 7)"),
    "a module that crashes": (module("import os\nos.kill(os.getpid(), 11)\n"), {}, "signal SIGSEGV"),
    "a module that wants another": (module("import not_installed_here\n"), {}, "No module named 'not_installed_here'"),
    "a file of null bytes": ({"mine.py": b"\x00\x01"}, {}, "cannot be imported"),
    "a file of another encoding": ({"mine.py": b"NAME = '\xff'\n"}, {}, "cannot be imported"),
    "a name of Python's": ({"json.py": "def score(row): return 1\n"}, {REWARD + "run": "json:score"}, "is never found"),
    "an option that is wrong": ({}, {REWARD + "options": {"scael": 2}}, "unexpected keyword argument 'scael'"),
    "an option that is missing": ({}, {REWARD + "run": "mine:judge", REWARD + "options": {}}, "missing a required"),
    "a reward without arguments": (module("def score(): return 1\n"), {REWARD + "options": {}},
        "cannot be called as (row)"),
    "a reward of two arguments": (module("def score(a, b): return 1\n"), {REWARD + "options": {}},
        "missing a required"),
    "a reward without a colon": ({}, {REWARD + "run": "mine"}, "module:function"),
    "a reward for TRL of a column that no reward names": (
        module("def score(completions, hint): return [0.0]\n"), {REWARD + "options": {}},
        "missing a required argument: 'hint'"),
    "a reward for TRL that takes every keyword and reads one that no reward names": (
        module("def score(completions, **kwargs):\n    return [len(h) for h in kwargs['hint']]\n"),
        {REWARD + "options": {}},
        "mine:score reads kwargs['hint'] in line 2, and of the data rows have answer, reference, source"),
    "a reward that reads what no row has": (
        module("def score(row, scale):\n    right = row['solution']\n    return 1.0\n"), {}, "reads row['solution']"),
    "a reward that asks and reads what no row has": (
        module("async def score(row, scale):\n    return await ask(row['text'])\n"), {}, "reads row['text'] in line 2"),
    "a reward for TRL that gets a column twice": (
        module("def score(completions, answer): return [0.0]\n"), {REWARD + "options": {"answer": "x"}},
        "gets 'answer' from every row"),
    "a reward for verl without a column": (
        module("def compute_score(data_source, solution_str, ground_truth): return 0.0\n"),
        {"rewards": [{"name": "mine", "run": "mine:compute_score"}]}, "missing a required argument: 'ground_truth'"),
    "a shipped reward that is misspelt": ({}, {REWARD + "run": "rljob_worker.rewards:math_anwser"},
        "Did you mean math_answer"),
    "a shipped reward without its option": (
        {}, {REWARD + "run": "rljob_worker.rewards:matches_format", REWARD + "options": {}}, "missing a required"),
    "a shipped reward without a column": (
        {}, {"rewards": [{"name": "mine", "run": "rljob_worker.rewards:final_number"}]}, "none is named"),
    "a second reward": (
        {}, {"rewards": [{"name": "a", "run": "mine:score"}, {"name": "b", "run": "mine:gone"}]}, "has no 'gone'"),
    # stages and parts of the algorithm
    "no stage module": ({}, stage(run="stages:own"), "no module 'stages'"),
    "a stage that is misspelt": ({}, stage(run="mine:stag"), "Did you mean stage"),
    "a stage with a wrong option": ({}, stage(options={"strenght": 2}), "unexpected keyword argument 'strenght'"),
    "a stage of one argument": (module("def score(row, scale): return 1\ndef stage(batch): return {}\n"), stage(),
        "cannot be called as (batch, context)"),
    "an aggregation of two arguments": ({}, {"algorithm.loss": {"aggregation": "mine:lose"}},
        "cannot be called as (max_response_tokens)"),
    "no KL estimator": ({}, {"algorithm.kl": {"estimator": "mine:gone", "coefficient": 0.1}}, "has no 'gone'"),
    "no estimator module": ({}, estimator("gone:estimate"), "no module 'gone'"),
    "an estimator that is misspelt": ({}, estimator("mine:estimat"), "Did you mean estimate"),
    "an estimator of other arguments": ({}, estimator("mine:lose"), "cannot be called as (samples, options, reduce)"),
    "no loss module": ({}, loss("gone:lose"), "no module 'gone'"),
    "a loss of other arguments": ({}, loss("mine:estimate"), "cannot be called as (tokens, options)"),
    # conversations
    "a tool without types": (module(SCORE + "def look(word): return word\n"), talks(tools=[{"run": "mine:look"}]),
        "word"),
    "no tool module": ({}, talks(tools=[{"run": "gone:look"}]), "no module 'gone'"),
    "an environment without a step": (module(SCORE + "class Game:\n    def reset(self, seed): return ''\n"),
        talks(environments=[{"name": "game", "run": "mine:Game"}]), "needs methods `reset(seed, **columns)`"),
    "a conversation that is not asynchronous": (module(SCORE + "def play(task, policy, world): pass\n"),
        talks(run="mine:play"), "Declare it with `async def`"),
    # simulators
    "no simulator module": ({}, acts("gone:Arm"), "no module 'gone'"),
    "a simulator that does not take its options": (module(SCORE + ARM), acts("mine:Arm", options={"size": 3}), "size"),
    "a simulator that raises": (module(SCORE + "def arm(): raise ValueError('no arm')\n"), acts("mine:arm"),
        "makes no environment: ValueError: no arm"),
    "a simulator that asks": (module(SCORE + "def arm(): return input('which arm? ')\n"), acts("mine:arm"), "EOFError"),
    "a simulator without a step": (module(SCORE + "class Arm:\n    def reset(self): pass\n"), acts("mine:Arm"),
        "which has no step"),
    "a simulator of numbered actions": (module(SCORE + ARM.replace("action_space", "actions")), acts("mine:Arm"),
        "a flat Box of continuous actions"),
    # sizes
    "rewards that all weigh nothing": ({}, {REWARD + "weight": 0}, "every weight is 0"),
    "more rows than there are numbers": ({}, {"stop.steps": 2**62}, "numbers for rows"),
    "a buffer of nothing": ({}, {"dataBuffer.memory": "1Ki"}, "Set dataBuffer.memory to at least"),
    "a spill of nothing": ({}, {"dataBuffer": {"memory": "1Mi", "spill": {"limit": "0"}}}, "a file without bytes"),
}  # fmt: skip


FRESH = {"a module that ends its process", "a reward that is misspelt"}
"""Whose functions a fresh interpreter imports, as those of every job of a user."""


@pytest.fixture(autouse=True)
def imports(request, monkeypatch):
    """In forks, except of cases that say how a job of a user is looked at."""
    callspec = getattr(request.node, "callspec", None)
    if callspec is None or callspec.params.get("name") not in FRESH:
        monkeypatch.setattr(ImportingProcess, "start", lambda _, environment: WarmImporting(environment))


@pytest.mark.parametrize("name", CASES)
def test_a_job_that_cannot_run_is_refused_with_what_is_wrong(name, tmp_path):
    changed, spoilt, words = CASES[name]
    verdict = verdict_on(write(tmp_path, changed, spoilt), ())
    assert verdict.problems, f"{name}: accepted"
    assert words in verdict.text(), verdict.text()
    assert "Traceback" not in verdict.text()
    assert all(problem.message and problem.path for problem in verdict.problems)


def test_the_job_that_they_spoil_is_accepted(tmp_path):
    verdict = verdict_on(write(tmp_path), ())
    assert verdict.text() == f"{tmp_path}/job.yaml: good is valid"
    assert len(CASES) >= 99


def test_what_this_machine_lacks_for_a_simulator_is_said_and_not_a_mistake_of_the_job(tmp_path):
    verdict = verdict_on(write(tmp_path, {"mine.py": SCORE + ARM}, acts("mine:Arm")), ())
    assert (verdict.problems, verdict.lacking) == ((), ())
    (libero,) = verdict_on(
        write(tmp_path, {}, acts("rljob_worker.embodied.adapters:libero", options={"suite": "libero_spatial"})), ()
    ).lacking
    assert libero.path == "spec.rollout.simulator.run" and libero.fix.startswith("Run pip install git+https://")


def test_a_job_with_a_model_of_a_reward_is_accepted(tmp_path):
    named = classifier() | {"taste/tokenizer_config.json": None}
    for changed, spoilt in ((classifier(), graded("taste")), (named, graded("taste", tokenizer="./model"))):
        verdict = verdict_on(write(tmp_path, changed, spoilt), ())
        assert verdict.problems == (), verdict.text()
        (tmp_path / "taste" / "tokenizer_config.json").unlink(missing_ok=True)


def test_all_that_is_wrong_is_said_at_once(tmp_path):
    spoilt = {"data.promptColumn": "promt", "rewards.0.run": "mine:scor", "dataBuffer.memory": "1Ki"}
    problems = verdict_on(write(tmp_path, {MODEL + "model.safetensors": None}, spoilt), ()).problems
    assert [item.path for item in problems] == [
        "spec.dataBuffer.memory", "spec.models[0].path", "spec.data.promptColumn", "spec.data.promptColumn",
        "spec.rewards[0].run",
    ]  # fmt: skip
    assert all(item.line for item in problems)


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("data.promptColumn=promt", "spec.data.promptColumn"),
        ("data.systemPrompt=be brief", "spec.data.systemPrompt"),
        ("models[0].chatTemplate={thinking: true}", "spec.models[0].chatTemplate.thinking"),
        ("rewards[0].column=anwser", "spec.rewards[0].column"),
        ("rewards[0].run=mine", "spec.rewards[0].run"),
        ("rewards[0].run=mine:scor", "spec.rewards[0].run"),
        ("rewards[0].options.scael=2", "spec.rewards[0].options"),
        ("algorithm.loss.name=mine:gone", "spec.algorithm.loss.name"),
    ],
)
def test_a_mistake_is_reported_once_where_it_was_written(tmp_path, override, path):
    changed = {"data/validation.jsonl": lines(rows(4))}
    problems = verdict_on(write(tmp_path, changed, {"data.validation": []}), [override]).problems
    assert [(item.path, item.source) for item in problems] == [(path, f"--set {override}")]


def test_what_a_stage_of_the_users_own_is_given_wrong_is_reported_at_its_options(tmp_path):
    (result,) = verdict_on(write(tmp_path, {}, stage(options={"strenght": 2})), ()).problems
    assert (result.path, result.found) == ("spec.dag.stages[2].options", '{"strenght": 2}')


def test_a_column_of_a_rollout_that_the_data_lack_is_reported_there(tmp_path):
    dag = stage()
    dag["dag"]["stages"][0]["writes"] = ["hint"]
    problems = verdict_on(write(tmp_path, {}, {**dag, "data.validation": []}), ()).problems
    assert [item.path for item in problems] == ["spec.dag.stages[0].writes"]


def test_without_the_data_everything_else_is_looked_at(tmp_path):
    path = write(tmp_path, {TRAIN: None, "data/validation.jsonl": None})
    verdict = verdict_on(path, (), looks_at_data=False)
    assert verdict.problems == () and "not looked at: the data, as --no-data says" in verdict.text()
    assert verdict_on(path, ["rewards[0].run=mine:gone"], looks_at_data=False).problems


@pytest.mark.parametrize(
    "prompts",
    [
        {"data/train.jsonl.gz": None},
        {
            "data/many/0.parquet": parquet({"prompt": ["a"] * 3, "answer": ["1"] * 3}),
            "data/many/1.parquet": parquet({"prompt": ["a"], "answer": ["2"]}),
        },
        {"data/many/list.json": json.dumps([GLIMPSE] * 4)},
        {"data/many/a.jsonl": lines([GLIMPSE]), "data/many/b.jsonl": lines([GLIMPSE] * 3)},
    ],
    ids=["one file", "two tables", "a list", "two files"],
)
def test_data_of_every_kind_is_read(tmp_path, prompts):
    place = "data/many" if any("many" in name for name in prompts) else TRAIN
    verdict = verdict_on(write(tmp_path, prompts, {"data.train.0.path": place}), ())
    assert verdict.problems == (), verdict.text()


def test_prompts_that_have_their_answer_are_warned_of(tmp_path):
    asked = [{"role": "user", "content": "a"}]
    prompts = [asked, [*asked, {"role": "assistant", "content": "b"}], asked, asked]
    rows = lines([GLIMPSE | {"prompt": prompt} for prompt in prompts])
    verdict = verdict_on(write(tmp_path, {TRAIN: rows}), ())
    assert verdict.problems == (), verdict.text()
    (warning,) = verdict.warned
    assert warning.startswith("row 2 of ") and "as 1 of the 4 rows looked at do" in warning


@pytest.mark.parametrize(
    "target", ["q_proj", "self_attn.q_proj", "model.layers.0.mlp.up_proj", "base.model.layers.0.mlp.up_proj"]
)
def test_an_adapter_beside_layers_that_are_there_is_accepted(tmp_path, target):
    assert verdict_on(write(tmp_path, {}, adapter(target)), ()).problems == ()


def test_an_adapter_is_not_refused_where_no_layer_is_known(tmp_path):
    changed = {MODEL + "model.safetensors": None}
    spoilt = adapter("anything") | {"models.0.initialise": "Random"}
    assert verdict_on(write(tmp_path, changed, spoilt), ()).problems == ()


def test_a_target_is_reported_at_its_place(tmp_path):
    (result,) = verdict_on(write(tmp_path, {}, adapter("q_proj", "up_porj")), ()).problems
    assert (result.path, result.found) == ("spec.models[0].adapter.targets[1]", "up_porj")


def test_a_model_of_random_weights_needs_none(tmp_path):
    changed = {MODEL + "model.safetensors": None, MODEL + "config.json": json.dumps(CONFIG)}
    assert verdict_on(write(tmp_path, changed, {"models.0.initialise": "Random"}), ()).problems == ()
