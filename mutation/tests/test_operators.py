"""Tests of the mutation operators."""

import pytest

from mutation.mutants import mutants_of

MISTAKES = [
    ("a < b", ["a <= b"]),
    ("a <= b", ["a < b"]),
    ("a > b", ["a >= b"]),
    ("a >= b", ["a > b"]),
    ("a == b", ["a != b"]),
    ("a != b", ["a == b"]),
    ("a in b", ["a not in b"]),
    ("a not  in b", ["a in b"]),
    ("a is b", ["a is not b"]),
    ("a is not b", ["a is b"]),
    ("(a) < (b) == c", ["(a) <= (b) == c", "(a) < (b) != c"]),
    ("a and b and c", ["a or b and c", "a and b or c"]),
    ("a or b", ["a and b"]),
    # each operator of its own node, though the same stands within an operand
    ("(a < b) < (c < d)", ["(a <= b) < (c < d)", "(a < b) <= (c < d)", "(a < b) < (c <= d)"]),
    ("(a or b) and (c and d)", ["(a and b) and (c and d)", "(a or b) or (c and d)", "(a or b) and (c or d)"]),
    ("(a - b) - (c - d)", ["(a + b) - (c - d)", "(a - b) + (c - d)", "(a - b) - (c + d)"]),
    ("not a", ["(a)"]),
    ("a if b else c", ["a if (not (b)) else c"]),
    ("a if b > c else d", ["a if b >= c else d", "a if (not (b > c)) else d"]),
    # turned round, these are the comparison's mutants
    ("a if b == c else d", ["a if b != c else d"]),
    ("[a for a in b if c]", ["[a for a in b if (not (c))]"]),
    ("a + b", ["a - b"]),
    ("a * b", ["a / b"]),
    ("a / b", ["a * b", "(a)"]),
    ("a // b", ["a * b", "(a)"]),
    ("(a + b) / c", ["(a - b) / c", "(a + b) * c", "(a + b)"]),
    ("-(-a // b)", ["((a) // (b))", "(-a // b)", "-((a) // b)", "-(-a * b)", "-((-a))"]),
    ("ceil(a / b)", ["int((a / b) // 1)", "ceil(a * b)", "ceil((a))"]),
    ("floor(a)", ["-int(-(a) // 1)"]),
    ("math.ceil(a)", ["math.floor(a)"]),
    ("a % b", ["a * b"]),
    ("-a", ["(a)"]),
    ("a | b", ["a & b"]),
    ("a & b", ["a | b"]),
    ("a << b", ["a >> b"]),
    ("a >> b", ["a << b"]),
    ("7", ["8", "6"]),
    ("0", ["1", "(-1)"]),
    ("0.5", ["1.5"]),
    ("True", ["False"]),
    ("'text'", ["''"]),
    ("''", ["'mutated'"]),
    ("f'{a + b} text'", ['""']),
    ("f(a, b=c)", ["f(a, )"]),
    ("f(b=c, d=(e))", ["f( d=(e))", "f(b=c, )"]),
    ("f(a.b, c, d)", ["f(c, a.b, d)"]),
    ("f(a, *b)", []),
    ("isinstance(a, b)", []),
    ("min(a, b)", ["max(a, b)"]),
    ("a.any()", ["a.all()"]),
    ("a.sum()", ["a.mean()"]),
    ("sum(a)", []),  # no module knows a `mean`
    ("a.startswith(b)", ["a.endswith(b)"]),
    ("'é' + b < c", ["'' + b < c", "'é' - b < c", "'é' + b <= c"]),
]


@pytest.mark.parametrize(("expression", "mutated"), MISTAKES, ids=[item for item, _ in MISTAKES])
def test_mistakes_in_an_expression(expression, mutated):
    texts = [mutant.text for mutant in mutants_of(f"return_({expression})")]
    assert "pass" in texts  # the whole statement
    texts.remove("pass")
    assert sorted(texts) == sorted(f"return_({item})" for item in mutated)


@pytest.mark.parametrize(
    ("statement", "mutated"),
    [
        ("return a", ["return None"]),
        ("return None", []),
        ("return", []),
        ("a = b", ["pass"]),
        ("a: int = b", ["a: int"]),
        ("a -= b", ["a += b", "pass"]),
        ("f()", ["pass"]),
        ("await f()", ["pass"]),
        ("raise a", ["pass"]),
        ("del a", ["pass"]),
        ("assert a < b", ["assert a <= b"]),
        ("def f(a=b, c=3): pass", ["def f(a=None, c=3): pass", "def f(a=b, c=4): pass", "def f(a=b, c=2): pass"]),
    ],
)
def test_mistakes_in_a_statement(statement, mutated):
    before = "async def _():\n    "
    assert sorted(mutant.text for mutant in mutants_of(before + statement)) == sorted(before + item for item in mutated)


def test_a_mutant_says_which_operator_made_it():
    text = "def f(a=b, *, c=0.5):\n    if not a and c > -1:\n        a = max(g(d=True), 'e', f'{c}')\n    return a"
    result = {mutant.change: mutant.operator for mutant in mutants_of(text)}
    assert result == {
        "b -> None": "default",
        "0.5 -> 1.5": "constant",
        "not a and c > -1 -> (not (not a and c > -1))": "negation",
        "not a -> (a)": "negation",
        "and -> or": "connective",
        "> -> >=": "comparison",
        "-1 -> (1)": "arithmetic",
        "1 -> 2": "constant",
        "1 -> 0": "constant",
        "a = max(g(d=True), 'e', f'{c}') -> pass": "statement",
        "max -> min": "call",
        "d=True -> ": "arguments",
        "True -> False": "constant",
        "'e' -> ''": "constant",
        "f'{c}' -> \"\"": "constant",
        "a -> None": "return",
    }


def test_loops_may_go_on_or_never_end():
    text = "while a:\n    if b:\n        break\n    continue"
    assert [mutant.change for mutant in mutants_of(text)] == [
        "a -> (not (a))",
        "b -> (not (b))",
        "break -> pass",
        "continue -> pass",
    ]
