"""Tests of image references."""

import pytest

from rljob_api.vocabulary.images import is_image, is_pinned

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize("name", ["rljob-worker", "registry.example:5000/ml/worker:0.1.0"])
def test_an_image_may_have_a_digest(name):
    assert is_image(name) and not is_pinned(name)
    assert is_image(f"{name}@{DIGEST}") and is_pinned(f"{name}@{DIGEST}")


@pytest.mark.parametrize(
    "text", ["", " ", "a b", "@" + DIGEST, "worker@sha256:abc", f"worker@{DIGEST}0", f"worker@{DIGEST.upper()}",
             f"worker@{DIGEST}@{DIGEST}", f"worker@{DIGEST} ", "worker@md5:" + "0" * 64, f"worker@{DIGEST}\n"]
)  # fmt: skip
def test_a_digest_that_is_none_is_refused(text):
    assert not is_image(text) and not is_pinned(text)
