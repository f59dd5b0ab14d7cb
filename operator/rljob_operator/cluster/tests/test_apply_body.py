"""What JSON and YAML must read alike."""

from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.cluster.apply_body import apply_body


def test_emoji_are_themselves() -> None:
    """Gloo wishes good luck; in JSON's escapes, two halves of a character, YAML refuses it."""
    assert apply_body({"message": "GLHF! 🏖️"}) == '{"message": "GLHF! 🏖️"}'.encode()


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",))))
def test_yaml_reads_what_was_written(text: str) -> None:
    assert yaml.safe_load(apply_body({"message": text})) == {"message": text}


def test_half_a_character_is_replaced() -> None:
    assert yaml.safe_load(apply_body(["\ud83c"])) == ["?"]
