"""Tests of the report on surviving mutants and their reasons."""

from mutation.mutants import mutants_of
from mutation.report import Result, findings_text, judge, row
from mutation.table import Module, Survivor

TEXT = "a = b\nc = d\ne = f\ng = h\n"
MUTANTS = mutants_of(TEXT)
KEYS = {mutant.key for mutant in MUTANTS}


def judged(survived, known=(), at_least=50.0):
    module = Module("room.module", "room/module.py", (), 1, 50, at_least)
    return judge(Result(module, MUTANTS, survived), known, KEYS)


def listed(key, module="room.module"):
    return Survivor(module, key, "nobody sees it")


def test_a_survivor_without_a_reason_fails():
    verdict = judged(MUTANTS[:1])
    assert not verdict.passed
    text = findings_text(verdict, TEXT)
    assert "room/module.py:1 (statement)\n-a = b\n+pass" in text
    assert 'scope = ""\nline = "a = b"\nchange = "a = b -> pass"' in text


def test_a_survivor_with_a_reason_passes():
    verdict = judged(MUTANTS[:1], [listed(MUTANTS[0].key)])
    assert verdict.passed
    assert findings_text(verdict, TEXT) == ""


def test_a_reason_counts_for_its_own_module_only():
    assert not judged(MUTANTS[:1], [listed(MUTANTS[0].key, "room.other")]).passed


def test_reasons_do_not_lift_the_percentage():
    verdict = judged(MUTANTS[:2], [listed(mutant.key) for mutant in MUTANTS[:2]], at_least=50.1)
    assert verdict.result.percent == 50  # two of four
    assert not verdict.passed
    assert "50.0 % killed, 50.1 % asked for" in findings_text(verdict, TEXT)
    assert row(verdict.result) == "| room.module | 4 | 2 | 50.0 |"


def test_what_is_listed_for_nothing_is_reported():
    verdict = judged([], [listed(MUTANTS[1].key), listed(("", "x = y", "x = y -> pass"))])
    assert verdict.passed
    killed, gone = findings_text(verdict, TEXT).split("\n\n")
    assert killed == "killed, take it out of survivors.toml: room.module: : c = d: c = d -> pass"
    assert gone.startswith("no such mutant") and "x = y" in gone
