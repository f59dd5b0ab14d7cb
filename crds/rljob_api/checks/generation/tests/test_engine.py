"""What engines have, and where."""

from dataclasses import replace

import pytest

from rljob_api.catalogue.declarations import Declarations
from rljob_api.catalogue.rollout_engines import ROLLOUT_ENGINES, DeclaredRolloutEngine
from rljob_api.tests.builders import TWO_GROUPS, problems

VLLM = "rollout.engine=VLLM"
ON_GPUS = "workerGroups=[{name: train, accelerator: {profile: nvidia-h100, count: 1}}]"
GENERATES_ON_CPU = "workerGroups=[{name: train, accelerator: {profile: nvidia-h100, count: 1}}, {name: rollout}]"


@pytest.mark.parametrize("groups", ["workerGroups=[{name: train, replicas: 2}]", *TWO_GROUPS, ON_GPUS])
def test_vllm_generates_anywhere(groups: str) -> None:
    assert problems(VLLM, groups) == []


@pytest.mark.parametrize(
    "option",
    ["blockSize: 64", "maxBatchedTokens: 1", "prefixCaching: true", "speculativeTokens: 2", "batchInvariant: true"],
)
def test_transformers_has_no_other_options(option: str) -> None:
    (problem,) = problems(f"rollout.engineOptions={{{option}}}")
    assert problem.path == f"spec.rollout.engineOptions.{option.split(':')[0]}"
    assert "Transformers has no such option" in problem.message


@pytest.mark.parametrize(
    ("override", "path", "words"),
    [
        ("rollout.engineOptions={blockSize: 48}", "spec.rollout.engineOptions.blockSize", "Write 64"),
        ("rollout.engineOptions={batchInvariant: true}", "spec.rollout.engineOptions.batchInvariant", "devices only"),
        (
            "rollout.engineOptions={speculativeTokens: 4}",
            "spec.rollout.engineOptions.speculativeTokens",
            "devices only",
        ),
        # prompts and responses of 48 tokens together
        ("rollout.engineOptions={maxBatchedTokens: 47}", "spec.rollout.engineOptions.maxBatchedTokens", "Write 48"),
        ("rollout.temperature=2.5", "spec.rollout.temperature", "up to 2"),
        ("rollout.temperature=0.009", "spec.rollout.temperature", "from 0.01 on: it would sample at 0.01"),
        ("validation.temperature=3", "spec.validation.temperature", "up to 2"),
        ("validation.temperature=0.009", "spec.validation.temperature", "Write 0.01 or more, or rollout.engine"),
        ("training.precision=Float64", "spec.training.precision", "Float32 and BFloat16"),
    ],
)
def test_what_vllm_does_not_have_on_cpus(override: str, path: str, words: str) -> None:
    (problem,) = problems(VLLM, override)
    assert problem.path == path and words in str(problem)


@pytest.mark.parametrize(
    "option", ["blockSize: 16", "maxBatchedTokens: 47", "batchInvariant: true", "speculativeTokens: 4"]
)
def test_what_it_has_on_devices(option: str) -> None:
    assert problems(VLLM, ON_GPUS, f"rollout.engineOptions={{{option}}}") == []
    (problem,) = problems(VLLM, GENERATES_ON_CPU, f"rollout.engineOptions={{{option}}}")
    assert "CPUs" in problem.message or "devices only" in problem.message


def test_a_forward_on_cpus_has_room_for_the_longest_row() -> None:
    assert problems(VLLM, "rollout.engineOptions={maxBatchedTokens: 48}") == []


def test_only_vllm_shares_layers_between_workers() -> None:
    pairs = ("workerGroups=[{name: train, accelerator: {profile: cpu, count: 2}}]", "rollout.parallelism.tensor=2")
    assert problems(VLLM, *pairs) == []
    (problem,) = problems(*pairs)
    assert problem.path == "spec.rollout.parallelism.tensor"
    assert "Transformers generates with a whole copy" in problem.message and "VLLM" in str(problem)


def test_other_engines_are_not_held_to_its_limits() -> None:
    assert problems("rollout.temperature=2.5", "training.precision=Float64") == []
    assert problems("rollout.temperature=0.009") == []


def test_temperatures_that_vllm_has() -> None:
    assert problems(VLLM, "rollout.temperature=0.01", "validation.temperature=0") == []
    assert problems(VLLM, "rollout.temperature=2", "validation.temperature=0.01") == []


@pytest.mark.parametrize(("temperature", "words"), [("1e-7", "Write 1e-06 or more."), ("1e7", "Write less.")])
def test_logits_stay_finite_numbers_with_transformers(temperature: str, words: str) -> None:
    (problem,) = problems(f"rollout.temperature={temperature}")
    assert problem.path == "spec.rollout.temperature" and str(problem).endswith(words)


def test_options_that_nobody_has_are_refused_by_name() -> None:
    (problem,) = problems(VLLM, "rollout.engineOptions={max_num_seqs: 4}")
    assert problem.path == "spec.rollout.engineOptions.max_num_seqs"


def test_only_an_engine_that_says_its_routes_has_them_replayed() -> None:
    replay = "training.routerReplay=Rollout"
    assert problems(replay) == []
    (problem,) = problems(replay, VLLM)
    assert problem.path == "spec.training.routerReplay" and "VLLM does not say here which experts" in problem.message


def test_transformers_records_graphs_where_there_is_a_device() -> None:
    graphs = "rollout.engineOptions={enforceEager: false}"
    assert problems(graphs, ON_GPUS) == [] == problems("rollout.engineOptions={enforceEager: true}")
    (problem,) = problems(graphs)
    assert problem.path == "spec.rollout.engineOptions.enforceEager" and "CUDA devices only" in problem.message


PARTIAL = "rollout.partial={tokensPerRound: 8, maxCarries: 3}"


@pytest.mark.parametrize("engine", ["Transformers", "VLLM"])
def test_both_engines_go_on_with_a_response(engine: str) -> None:
    assert problems(PARTIAL, f"rollout.engine={engine}") == []


@pytest.mark.parametrize(
    ("partial", "path", "words"),
    [
        ("{tokensPerRound: 32, maxCarries: 3}", "tokensPerRound", "at most 31"),  # responses have at most 32 tokens
        ("{tokensPerRound: 0, maxCarries: 3}", "tokensPerRound", "at least 1"),
        ("{tokensPerRound: 8, maxCarries: 0}", "maxCarries", "at least 1"),
        ("{tokensPerRound: 8}", "maxCarries", "required"),
    ],
)
def test_rounds_that_carry_nothing_on(partial: str, path: str, words: str) -> None:
    (problem,) = problems(f"rollout.partial={partial}")
    assert problem.path == f"spec.rollout.partial.{path}" and words in str(problem)


def test_an_engine_that_cannot_go_on_with_a_response(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = replace(ROLLOUT_ENGINES["Transformers"], continues=False)
    engines = Declarations("rollout engine", "none", DeclaredRolloutEngine, whole, ROLLOUT_ENGINES["VLLM"])
    monkeypatch.setattr("rljob_api.checks.generation.engine.ROLLOUT_ENGINES", engines)
    (problem,) = problems(PARTIAL)
    assert problem.path == "spec.rollout.partial"
    assert "Transformers cannot go on with a response that an earlier step began" in problem.message
    assert problem.fix == "Leave it out, or rollout.engine: VLLM."
    assert problems(PARTIAL, "rollout.engine=VLLM") == []


HTTP = "rollout.engine=HTTP"
SERVER = "rollout.server={routes: SGLang, urls: ['http://10.0.0.1:30000'], weightsDirectory: /mnt/weights}"


def served(urls: str) -> str:
    return f"rollout.server={{routes: VLLM, urls: {urls}, weightsDirectory: /mnt/weights}}"


def test_servers_generate_for_as_many_workers() -> None:
    assert problems(HTTP, SERVER) == []
    urls = str([f"https://server-{number}:8000/inference" for number in range(4)])
    assert problems(HTTP, served(urls), *TWO_GROUPS) == []


@pytest.mark.parametrize(
    ("overrides", "path", "words"),
    [
        ([HTTP], "spec.rollout.server", "asks servers"),
        ([SERVER], "spec.rollout.server", "rollout.engine Transformers generates in the workers"),
        ([HTTP, SERVER, *TWO_GROUPS], "spec.rollout.server.urls", "there are 1, and 4 workers generate"),
        ([HTTP, served("['http://a:1', 'http://a:1']")], "spec.rollout.server.urls", "named twice"),
        ([HTTP, served("['ftp://a:1']")], "spec.rollout.server.urls[0]", "wrong form"),
        ([HTTP, served("['http://key@a:1']")], "spec.rollout.server.urls[0]", "wrong form"),
        (
            [HTTP, SERVER, "rollout.server.weightsDirectory=weights"],
            "spec.rollout.server.weightsDirectory",
            "wrong form",
        ),
        ([HTTP, SERVER, "rollout.server.routes=TGI"], "spec.rollout.server.routes", "VLLM"),
        ([HTTP, SERVER, "rollout.engineOptions={blockSize: 32}"], "spec.rollout.engineOptions.blockSize", "no such"),
        ([HTTP, SERVER, "rollout.parallelism={tensor: 2}"], "spec.rollout.parallelism.tensor", "whole copy"),
        ([HTTP, SERVER, "training.precision=Float64"], "spec.training.precision", "Float32 and BFloat16"),
    ],
)
def test_servers_that_a_job_cannot_use(overrides: list[str], path: str, words: str) -> None:
    first = problems(*overrides)[0]
    assert first.path == path and words in str(first), first


def test_elastic_workers_have_no_servers() -> None:
    groups = "workerGroups=[{name: train}, {name: rollout, elastic: {min: 1, max: 2}}]"
    assert any(
        item.path == "spec.rollout.engine" and "rollout is elastic" in item.message
        for item in problems(HTTP, SERVER, groups)
    )
