"""What happens to responses that are too long."""

from __future__ import annotations

from torch import Tensor


def soft_overlong_penalty(lengths: Tensor, *, max_response_tokens: int, buffer_tokens: int, penalty: float) -> Tensor:
    """A penalty that grows linearly over the last tokens allowed, added to the reward.

    -penalty · clip((|y| - (L_max - L_buffer)) / L_buffer, 0, 1)

    DAPO section 3.4, https://arxiv.org/abs/2503.14476
    lengths: int64 [rows], action tokens, the end-of-sequence token included. buffer_tokens: at least 1.
    Returns [rows], float64, in [-penalty, 0].
    """
    assert 0 < buffer_tokens <= max_response_tokens, f"a buffer of {buffer_tokens} in {max_response_tokens} tokens"
    excess = (lengths - (max_response_tokens - buffer_tokens)).double() / buffer_tokens
    return -penalty * excess.clamp(0.0, 1.0)


def mask_truncated(mask: Tensor, truncated: Tensor, row: Tensor) -> Tensor:
    """Take the tokens of truncated rows out of the loss; the rows stay in the baseline of their group.

    m_t · [row of t is not truncated]

    Overlong filtering, DAPO section 3.4, https://arxiv.org/abs/2503.14476
    mask: bool [tokens]. truncated: bool [rows]. row: int64 [tokens]. Returns bool [tokens].
    """
    return mask & ~truncated[row]
