"""Services and the rewards that ask them."""

import pytest
from pydantic import ValidationError

from rljob_api.planning.advice import warnings_of
from rljob_api.tests.builders import make_plan, problems
from rljob_api.v1alpha1 import ServiceSpec

JUDGE = "{name: judge, run: 'rljob_worker.services:judge', options: {path: m, rubric: '{response}?'}}"
SERVICES = f"services=[{JUDGE}]"
ASKS = "rewards=[{name: good, run: 'rljob_worker.rewards:served', service: judge}]"


def only_problem(*overrides: str) -> str:
    (problem,) = problems(*overrides)
    return f"{problem.found}: {problem.message}. {problem.fix}"


def of_reward(fields: str) -> str:
    return f"rewards=[{{name: good, run: 'rljob_worker.rewards:served', {fields}}}]"


def test_a_job_with_a_judge_is_valid() -> None:
    assert problems(SERVICES, ASKS) == []
    assert warnings_of(make_plan(SERVICES, ASKS)) == warnings_of(make_plan())


def test_a_reward_may_ask_a_service_that_runs_elsewhere() -> None:
    assert problems(of_reward("url: 'https://models.example/judge', tokenVariable: JUDGE_TOKEN, batchRows: 4")) == []
    assert problems(of_reward("url: 'http://10.0.0.1:8000', tokenFile: /run/token")) == []


def test_a_service_that_nobody_asks_is_warned_of() -> None:
    assert warnings_of(make_plan(SERVICES)) == [
        *warnings_of(make_plan()),
        "nothing asks the service judge: it takes its place and answers nobody",
    ]


@pytest.mark.parametrize(
    ("services", "path", "words"),
    [
        (f"[{JUDGE}, {JUDGE}]", "spec.services[1].name", "the name is taken by spec.services[0]"),
        ("[{name: judge, run: judge}]", "spec.services[0].run", "module:application"),
        (
            "[{name: judge, run: 'rljob_worker.services:juge'}]",
            "spec.services[0].run",
            'no such application is shipped, found "rljob_worker.services:juge". Did you mean judge?',
        ),
        (
            "[{name: judge, run: 'rljob_worker.services:reward_model', options: {path: m, maxToken: 3}}]",
            "spec.services[0].options.maxToken",
            "Did you mean maxTokens?",
        ),
        (
            "[{name: judge, run: 'rljob_worker.services:reward_model'}]",
            "spec.services[0].options.path",
            "reward_model needs this option. Add path.",
        ),
        (
            "[{name: judge, run: 'rljob_worker.services:embedding', options: {path: 3}}]",
            "spec.services[0].options.path",
            "input should be a valid string, found 3",
        ),
        (
            "[{name: judge, run: 'rljob_worker.services:judge', options: {path: m, rubric: r, votes: 3}}]",
            "spec.services[0].options",
            "3 votes at temperature 0 are all the same",
        ),
        (
            "[{name: judge, run: 'rljob_worker.services:judge', options: {path: m, rubric: r, lowest: 2}}]",
            "spec.services[0].options",
            "highest 1 is not above lowest 2",
        ),
        ("[{name: judge, run: 'my:app', workerGroup: {replicas: 2}}]", "spec.services[0].workerGroup.replicas", "own"),
        ("[{name: judge, run: 'my:app', autoscaling: {maxReplicas: 2}}]", "spec.services[0].autoscaling", "own"),
        (
            "[{name: judge, run: 'my:app', workerGroup: {accelerator: {profile: nvidia-h10}}}]",
            "spec.services[0].workerGroup.accelerator.profile",
            'there is no such profile, found "nvidia-h10". Did you mean nvidia-h100?',
        ),
        (
            "[{name: judge, run: 'my:app', workerGroup: {accelerator: {profile: gaudi, count: 3}}}]",
            "spec.services[0].workerGroup.accelerator.count",
            "Write one of 1, 2, 4, 8.",
        ),
        (
            "[{name: judge, run: 'my:app', workerGroup: {accelerator: {profile: cambricon}}}]",
            "spec.services[0].workerGroup.accelerator.profile",
            "acceleratorProfiles.cambricon.rayResource in the chart's values",
        ),
    ],
)
def test_a_service_that_cannot_be_is_refused(services: str, path: str, words: str) -> None:
    (problem,) = problems(f"services={services}", ASKS)
    assert problem.path == path and words in str(problem)


@pytest.mark.parametrize(
    ("fields", "path", "words"),
    [
        ("workerGroup: {replicas: 2}, autoscaling: {maxReplicas: 3}", "workerGroup.replicas", "initialReplicas"),
        ("autoscaling: {minReplicas: 4, maxReplicas: 3}", "autoscaling.maxReplicas", "less than minReplicas 4"),
        ("autoscaling: {maxReplicas: 3, initialReplicas: 4}", "autoscaling.initialReplicas", "from 1 to 3"),
    ],
)
def test_copies_are_bounded_once(fields: str, path: str, words: str) -> None:
    service = JUDGE.removesuffix("}") + f", {fields}}}"
    (problem,) = problems(f"services=[{service}]", ASKS)
    assert problem.path == f"spec.services[0].{path}" and words in str(problem)


@pytest.mark.parametrize(
    ("fields", "path", "words"),
    [
        ("service: juge", "spec.rewards[0].service", "Did you mean judge?"),
        ("service: judge, url: 'https://a.example'", "spec.rewards[0]", "Keep one of service and url."),
        ("url: judge", "spec.rewards[0].url", "not the address"),
        ("url: 'https://me:secret@a.example'", "spec.rewards[0].url", "would be in every log"),
        ("url: 'https://a.example', tokenFile: token", "spec.rewards[0].tokenFile", "not absolute"),
        ("url: 'https://a.example', tokenFile: /t, tokenVariable: T", "spec.rewards[0]", "one place"),
        ("service: judge, tokenVariable: T", "spec.rewards[0].tokenVariable", "without url it says nothing"),
    ],
)
def test_a_reward_asks_one_service_that_is_there(fields: str, path: str, words: str) -> None:
    (problem,) = problems(SERVICES, of_reward(fields))
    assert problem.path == path and words in str(problem)


def test_a_password_is_not_repeated() -> None:
    assert "secret" not in only_problem(of_reward("url: 'https://me:secret@a.example'"))


def test_what_is_said_of_calls_that_nobody_makes_is_refused() -> None:
    assert "it asks a service, and none is named" in only_problem(of_reward("timeoutSeconds: 3"))
    plain = "rewards=[{name: good, run: 'my:good', batchRows: 4}]"
    assert "without service or url it says nothing" in only_problem(plain)


@pytest.mark.parametrize("name", ["judge_", "my__judge", "my-judge", "_judge"])
def test_a_services_name_is_part_of_an_address(name: str) -> None:
    with pytest.raises(ValidationError, match="name"):
        ServiceSpec.model_validate({"name": name, "run": "mine:app"})
    assert ServiceSpec.model_validate({"name": "my_2nd_judge", "run": "mine:app"}).name == "my_2nd_judge"


@pytest.mark.parametrize(("profile", "count"), [("nvidia-h100", 2), ("amd", 1), ("ascend-910", 4), ("cpu", 3)])
@pytest.mark.parametrize("of", [JUDGE, "{name: judge, run: 'my:app'}"])
def test_a_service_may_have_accelerators(of: str, profile: str, count: int) -> None:
    group = f"workerGroup: {{accelerator: {{profile: {profile}, count: {count}}}}}"
    assert problems(f"services=[{of.removesuffix('}')}, {group}}}]", ASKS) == []
