"""The body of a server-side apply: YAML, which the API server takes literally."""

from __future__ import annotations

import json
import re
from typing import Any

_NOT_RAW_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Control characters and breaks of lines that JSON allows in a string as they are."""


def apply_body(body: Any) -> bytes:
    """JSON that is YAML as well.

    YAML has no surrogate pairs: an object with an emoji, which gloo's errors have, is refused in JSON's escapes.
    """
    text = json.dumps(body, ensure_ascii=False)
    escaped = _NOT_RAW_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return escaped.encode("utf-8", "replace")
