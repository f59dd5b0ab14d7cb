"""Which packages of an extra are missing."""

from rljob_worker.cli.extras import missing_packages, require_extra

REQUIREMENTS = [
    "pydantic==2.14.3",
    "kopf==1.45.2; extra == 'operator'",
    "math-verify==0.9.0; extra == 'worker'",
    'torch>=2; python_version >= "3.11" and extra == "worker"',
    "tool[cli]~=1.0 ; extra=='worker'",
]


def test_an_extras_packages_are_missed_by_name_and_no_others():
    assert missing_packages(REQUIREMENTS, "worker", {"pydantic"}.__contains__) == ["math-verify", "torch", "tool"]
    assert missing_packages(REQUIREMENTS, "worker", {"torch", "tool"}.__contains__) == ["math-verify"]
    assert missing_packages(REQUIREMENTS, "worker", {"math-verify", "torch", "tool"}.__contains__) == []


def test_what_is_installed_here_is_not_missed():
    require_extra("worker", "rljob run")
