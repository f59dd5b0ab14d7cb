"""Can a response contain the texts that are to end it?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rljob_api.vocabulary.problem import Problem
from rljob_worker.rehearsal.finding import Finding
from rljob_worker.rehearsal.inputs.tokenizer import LightTokenizer


def stop_findings(stops: Sequence[str], tokenizer: LightTokenizer) -> Iterator[Finding]:
    """stops: `rollout.stop`. Whether any tokens make a text is known to the engines, which put them together."""
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    special = {token.content: token_id for token_id, token in added.items() if token.special}
    for i, text in enumerate(stops):
        if text in special:
            message = "this is a special token, which is no text in a response"
            fix = f"Write stopTokenIds: [{special[text]}]."
            yield Finding(Problem(f"spec.rollout.stop[{i}]", text, message, fix))
