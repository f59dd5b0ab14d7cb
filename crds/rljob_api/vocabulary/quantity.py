"""Kubernetes quantities of bytes: `16Gi`, `500M`."""

from __future__ import annotations

import re
from decimal import Decimal

QUANTITY = r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$"

_FACTORS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def parse_quantity(text: str) -> int:
    """Bytes of a quantity: `1.5Gi` is 1610612736.  ValueError for anything else."""
    if re.fullmatch(QUANTITY, text) is None:
        raise ValueError(f"{text!r} is not a quantity of bytes; write it as 16Gi or 500M")
    number = text.rstrip("kKMGTi")
    return int(float(number) * _FACTORS[text[len(number) :]])


LARGEST = 2**63 - 1
"""The largest number in a quantity."""

_AMOUNT = re.compile(r"([+-]?[0-9]*\.?[0-9]+)(?:([eE][+-]?[0-9]{1,3})|(n|u|m|k|Ki|[MGTPE]i?)?)")
_SUFFIXES = {
    **{suffix: Decimal(10) ** (3 * power) for power, suffix in enumerate(("n", "u", "m", "", "k", *"MGTPE"), start=-3)},
    **{f"{letter}i": Decimal(2) ** (10 * power) for power, letter in enumerate("KMGTPE", start=1)},
}


def amount(quantity: str | int | float) -> Decimal:
    """Any Kubernetes quantity as a number: `500m` is 0.5, `100u` 0.0001, `2Gi` 2147483648.  ValueError for anything
    else, and for one beyond what Kubernetes counts."""
    match = _AMOUNT.fullmatch(str(quantity))
    if match is None:
        raise ValueError(f"{quantity!r} is not a quantity; write it as 500m, 2 or 16Gi")
    number, exponent, suffix = match.groups()
    value = Decimal(number + (exponent or "")) * _SUFFIXES[suffix or ""]
    if abs(value) > LARGEST:
        raise ValueError(f"{quantity!r} is beyond {LARGEST}, the largest number in a quantity")
    return value


def covering_quantity(count: int) -> str:
    """The smallest whole number of Mi, or from 1Gi on of Gi, that is not less than n bytes."""
    mebibytes = -(-count // 2**20)
    return f"{mebibytes}Mi" if mebibytes < 1024 else f"{-(-mebibytes // 1024)}Gi"


def format_bytes(count: int) -> str:
    """Bytes for people: 1610612736 is `1.5 GiB`."""
    for unit, size in _UNITS:
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
