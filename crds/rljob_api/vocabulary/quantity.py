"""Kubernetes quantities of bytes: `16Gi`, `500M`."""

from __future__ import annotations

import re

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
        raise ValueError(f"{text!r} is no quantity of bytes; write it as 16Gi or 500M")
    number = text.rstrip("kKMGTi")
    return int(float(number) * _FACTORS[text[len(number) :]])


def covering_quantity(count: int) -> str:
    """The smallest whole number of Mi, or from 1Gi on of Gi, that is not less than so many bytes."""
    mebibytes = -(-count // 2**20)
    return f"{mebibytes}Mi" if mebibytes < 1024 else f"{-(-mebibytes // 1024)}Gi"


def format_bytes(count: int) -> str:
    """Bytes for people: 1610612736 is `1.5 GiB`."""
    for unit, size in _UNITS:
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
