"""The shipped tool that runs programs of a model. Needs Linux with Landlock of ABI 6 or later, and seccomp."""

import asyncio

import pytest

from rljob_api.v1alpha1.conversation import PYTHON_TOOL
from rljob_worker.errors import InvalidJob
from rljob_worker.sandbox.calls.calls import Target
from rljob_worker.sandbox.tests.calling import calling, limits

pytestmark = pytest.mark.usefixtures("confining_kernel")


def answers(*programs, **changed):
    async def run():
        tool = Target(PYTHON_TOOL, {}, limits(**changed), isolated=True)
        async with calling(tool, confinement="Required") as calls:
            return [await calls.call("s", "python", None, {"code": program}) for program in programs]

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("print(6 * 7)", "42\n"),
        ("import sys\nprint('a', file=sys.stderr)\nsys.exit(3)", "a\n"),
        ("1 / 0", 'Traceback (most recent call last):\n  File "<program>", line 1, in <module>\n'
                  "ZeroDivisionError: division by zero\n"),
        ("def", '  File "<program>", line 1\n    def\n       ^\nSyntaxError: invalid syntax\n'),
        ("print('\\udc80')", "?\n"),
        ("open('/etc/passwd')", 'Traceback (most recent call last):\n  File "<program>", line 1, in <module>\n'
                                "PermissionError: [Errno 13] Permission denied: '/etc/passwd'\n"),
    ],
)  # fmt: skip
def test_a_program_prints(program, printed):
    assert answers(program)[0].value == printed


def test_names_and_files_stay_in_a_trajectory():
    result = answers("x = 3; open('f', 'w').write('y')", "print(x, open('f').read())")
    assert [answer.value for answer in result] == ["", "3 y\n"]


def test_the_middle_of_a_long_output_is_left_out():
    (answer,) = answers("print('a' * 1_000_000)")
    assert len(answer.value) < 20_100 and "... 980001 characters ..." in answer.value


def test_a_program_without_end_is_ended():
    assert answers("while True: pass", seconds=0.5)[0].error.cause == "TimedOut"


@pytest.mark.parametrize(
    ("confinement", "isolated", "words"),
    [
        ("Off", True, "confinement: Required"),
        ("Preferred", True, "confinement: Required"),
        ("Required", False, "isolated"),
    ],
)
def test_it_is_refused_where_nothing_confines_it(confinement, isolated, words):
    async def run():
        async with calling(Target(PYTHON_TOOL, {}, limits(), isolated), confinement=confinement):
            """Not reached."""

    with pytest.raises(InvalidJob, match=f'target "python": {PYTHON_TOOL} runs what a model writes; it needs {words}'):
        asyncio.run(run())
