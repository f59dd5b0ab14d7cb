"""Names of container images, as far as they are checked before a node has to make sense of them."""

from __future__ import annotations

import re

IMAGE = r"^[^\s@]+(@sha256:[0-9a-f]{64})?$"
"""A name with or without a digest; what a digest is, is known exactly."""

IMAGE_FORM = "an image is NAME, NAME:TAG or NAME@sha256: with 64 digits from 0 to f"


def is_image(text: str) -> bool:
    """Whether a node could look for it."""
    return re.fullmatch(IMAGE, text) is not None


def is_pinned(image: str) -> bool:
    """Whether the name says which image it is, whatever its registry does: by digest."""
    return is_image(image) and "@" in image
