"""When a request to the API server is retried, and after which backoff."""

from __future__ import annotations

from dataclasses import dataclass, field

from rljob_operator.vocabulary.backoff import Backoff

_LONGEST_RETRY_AFTER_SECONDS = 60.0


@dataclass(frozen=True)
class ApiResponse:
    """What came back.  `status` is None when nothing did, and `body` then says why, for people."""

    status: int | None
    body: bytes = b""
    retry_after: str | None = None
    """The header of this name."""
    is_cut: bool = False
    """Whether the body was longer than the request had it, and was not read to its end."""

    @property
    def is_success(self) -> bool:
        """Whether the request succeeded."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def code(self) -> str:
        """The status as a metric's label."""
        return "error" if self.status is None else str(self.status)


@dataclass(frozen=True)
class RetryPolicy:
    """Sends again after 429, 5xx, and when no answer came."""

    attempts: int = 5
    backoff: Backoff = field(default=Backoff(0.2, 10.0))

    def pause_seconds(self, answer: ApiResponse, num_sent: int, chance: float) -> float | None:
        """The pause before the next attempt after `num_sent` ones, or None: `answer` is final.

        The server's Retry-After is a floor of the pause.
        """
        if num_sent >= self.attempts or not _is_passing(answer):
            return None
        return max(self.backoff.seconds(num_sent, chance), _retry_after_seconds(answer))


def _is_passing(answer: ApiResponse) -> bool:
    if answer.status is None or answer.status == 429 or answer.status >= 500:
        return True
    # Pods created at once in a namespace with a ResourceQuota get in each other's way when it is charged.
    return answer.status == 409 and b"resourcequotas" in answer.body


def _retry_after_seconds(answer: ApiResponse) -> float:
    # The API server writes seconds; a date, as a proxy may write, is left to the back-off.
    text = answer.retry_after or ""
    return min(float(text), _LONGEST_RETRY_AFTER_SECONDS) if text.isdecimal() else 0.0
