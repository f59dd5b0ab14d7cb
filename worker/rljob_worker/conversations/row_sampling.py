"""Rows of one trajectory and the turns that are sampled in them, several at once where they are in different rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rljob_worker.batch import Indices
from rljob_worker.conversations.trajectory import Sampled, TokenRow, Trajectory
from rljob_worker.engines.rollout.requests import MOST_TOP_LOG_PROBS, Ending
from rljob_worker.vision.pictures import picture_digest

Generate = Callable[["TurnRequest"], Awaitable[Sampled]]
Hear = Callable[[Indices], None]
"""Called in the event loop with the tokens of a turn so far, int64 [tokens], now and then."""


class ConversationOver(BaseException):
    """The policy was asked for a turn for which there is no room. No `except Exception` of a run function keeps it."""


class RowsInUse(RuntimeError):
    """There is no room for a turn beside those that are under way; there may be once they are over."""


@dataclass(frozen=True, slots=True, eq=False)
class TurnRequest:
    """A turn that the policy is asked for."""

    row_index: int
    """Which row of its trajectory it continues."""
    turn: int
    """Number in its trajectory, from 0."""
    row: TokenRow
    """As it is while the turn is awaited."""
    added: Indices
    """int64 [tokens] that the row gets with what is sampled."""
    max_tokens: int
    added_pictures: tuple[bytes, ...] = ()
    """What these show, encoded, in their order."""
    hear: Hear | None = None
    """Who wants to know what there is of the turn before it is over."""
    top_log_probs: int = 0
    """How many of the most likely tokens are asked for beside each that is sampled."""

    @property
    def sequence(self) -> Indices:
        """int64 [tokens] that the turn follows."""
        return np.concatenate([self.row.sequence(), self.added])

    @property
    def pictures(self) -> tuple[bytes, ...]:
        """What `sequence` shows, encoded, in the order of its tokens."""
        return (*self.row.pictures, *self.added_pictures)

    def digest(self) -> str:
        """A digest of `sequence` and its pictures, which costs what is new in them."""
        return self.row.digest(self.added, self.added_pictures)

    @property
    def identity(self) -> bytes | None:
        """Equal for requests that begin a row with equal prompts, pictures and states; None for a row that goes on:
        none equals it."""
        if self.row.num_response_tokens:
            return None
        state = b"" if self.row.state is None else self.row.state.tobytes()
        return self.sequence.tobytes() + b"".join(map(picture_digest, self.pictures)) + state


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a trajectory may get, and of which tokens."""

    turns: int
    rows: int
    response_tokens: int
    """Tokens of a row behind its prompt."""
    row_tokens: int
    """Tokens of a row and its prompt."""
    num_tokens: int | None = None
    """Tokens of the model: ids from 0 to one less. None: they are not looked at."""
    sees: bool = True
    """Whether what a row shows may be pictures."""
    most_top_log_probs: int = MOST_TOP_LOG_PROBS
    """Likely tokens that a turn may ask for beside each that is sampled; 0 where the engine gives none."""

    def require_known(self, tokens: Indices) -> None:
        """Raises ValueError for a token that the model has not."""
        if self.num_tokens is None:
            return
        unknown = np.flatnonzero((tokens < 0) | (tokens >= self.num_tokens))
        if len(unknown):
            at = unknown[0]
            raise ValueError(f"token {tokens[at]} at place {at}: the model has tokens from 0 to {self.num_tokens - 1}")

    def require_top(self, number: object) -> None:
        """Raises ValueError for what is no number of likely tokens that the engine gives."""
        most = self.most_top_log_probs
        if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number <= most:
            known = f"not a whole number from 0 to {most}" if most else "and the engine gives none; leave it out"
            raise ValueError(f"top_log_probs is {number!r}, {known}")

    def room_of(self, row: TokenRow) -> int:
        """Tokens that a row may still have."""
        left = self.row_tokens - len(row.prompt)
        return min(self.response_tokens, left) - row.num_response_tokens


class RowSampler:
    """Samples turns of one trajectory. A turn that is cancelled leaves nothing."""

    def __init__(
        self,
        trajectory: Trajectory,
        bounds: Bounds,
        generate: Generate,
        picture_token: int | None = None,
        agent: int = 0,
    ) -> None:
        """picture_token: stands for a part of a picture, of a model that sees. agent: whose rows they are, by its place
        in the job; each has `bounds.rows` numbers of the trajectory's."""
        self._trajectory, self._bounds, self._generate, self._agent = trajectory, bounds, generate, agent
        self._picture_token = picture_token
        self._places: dict[TokenRow, int] = {}
        """Numbers of the agent's rows, below `bounds.rows`."""
        self._under_way: set[TokenRow] = set()
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """Whether there is no room for another turn: out of turns, or of tokens."""
        return self._is_over or self.turns_left == 0

    @property
    def turns_left(self) -> int:
        """Turns that there may be yet."""
        return self._bounds.turns - self._trajectory.num_turns

    def is_busy(self, row: TokenRow) -> bool:
        """Whether a turn of the row is under way."""
        return row in self._under_way

    def may_go_on(self, row: TokenRow) -> bool:
        """Whether a row may have another turn: not where the policy has drawn tokens of pictures itself, behind which a
        model that is given the row would look for one more picture than it shows."""
        sampled = row.last_sampled
        return sampled is None or self._picture_token not in sampled.tokens.tolist()

    def require_turn(self) -> None:
        """Raises ConversationOver where there is no turn left, RowsInUse where those under way take the last ones."""
        if self.is_over:
            self._end()
        if self.turns_left == len(self._under_way):
            raise RowsInUse(f"the last of the trajectory's {self._bounds.turns} turns are under way")

    async def sample(
        self,
        row: TokenRow | None,
        tokens: Indices,
        max_tokens: int | None = None,
        pictures: Sequence[bytes] = (),
        *,
        is_decision: bool = False,
        hear: Hear | None = None,
        top_log_probs: int = 0,
    ) -> tuple[TokenRow, Sampled]:
        """Add tokens to a row, and those that the policy samples then. row: None opens one, with the tokens as prompt.
        pictures: what the tokens show, encoded. is_decision: whether it has max_tokens tokens, and is not cut off by
        them. hear: as in `TurnRequest`; not called where the turn is replayed. top_log_probs: as in `TurnRequest`; a
        row does not keep them.

        Raises ConversationOver, which ends the trajectory as truncated, where there is no room; RowsInUse where there
        is none beside turns under way; ValueError for a token that the model has not, for pictures that it does not
        see, for max_tokens that are no number of tokens and for top_log_probs that are none that the engine gives.
        """
        self.require_turn()
        self._bounds.require_known(tokens)
        if max_tokens is not None and not (isinstance(max_tokens, int | np.integer) and max_tokens >= 1):
            raise ValueError(f"max_tokens is {max_tokens!r}; a turn has one token at least, and whole ones")
        self._bounds.require_top(top_log_probs)
        if (pictures or (row is not None and row.pictures)) and not self._bounds.sees:
            raise ValueError("pictures: the model of the policy does not see; leave them out, or train one that sees")
        if row is None:
            if not len(tokens):
                raise ValueError("a row begins with one token at least")
            row, tokens, pictures = TokenRow(tokens, pictures, agent=self._agent), np.empty(0, np.int64), ()
        elif not self.may_go_on(row):
            self._end()
        place = self._place_of(row)
        room = self._bounds.room_of(row) - len(tokens)
        if room < 1:
            self._end()
        most = room if max_tokens is None else min(room, max_tokens)
        turn = self._trajectory.num_started
        row.place = self._agent * self._bounds.rows + place
        top = min(top_log_probs, self._bounds.num_tokens or top_log_probs)
        request = TurnRequest(row.place, turn, row, tokens, most, tuple(pictures), hear, top)
        sampled = await self._sampled(row, request)
        row.add_world(tokens, pictures)
        self._add(row, turn, sampled)
        if self._trajectory.is_cut_off or (sampled.ending == Ending.LENGTH and most == room and not is_decision):
            self._is_over = self._trajectory.truncated = True
        return row, sampled

    async def _sampled(self, row: TokenRow, request: TurnRequest) -> Sampled:
        self._places[row] = request.row_index - self._agent * self._bounds.rows
        self._under_way.add(row)
        self._trajectory.num_started += 1
        is_sampled = False
        try:
            sampled = await self._generate(request)
            is_sampled = True
            return sampled
        finally:
            self._under_way.discard(row)
            if not is_sampled:
                # the call that comes in its place is drawn as this one would have been
                self._trajectory.num_started -= request.turn == self._trajectory.num_started - 1
                if not row.num_response_tokens:
                    del self._places[row]

    def _place_of(self, row: TokenRow) -> int:
        if row in self._places:
            return self._places[row]
        taken = set(self._places.values())
        if len(taken) == self._bounds.rows:
            if self._under_way:
                raise RowsInUse(f"the trajectory's {self._bounds.rows} rows are in use")
            self._end()
        return min(set(range(len(taken) + 1)) - taken)

    def _add(self, row: TokenRow, turn: int, sampled: Sampled) -> None:
        row.add_sampled(sampled if sampled.top_log_probs is None else replace(sampled, top_log_probs=None), turn)
        self._trajectory.num_turns += 1
        if row not in self._trajectory.rows:
            self._trajectory.rows.append(row)
            self._trajectory.rows.sort(key=lambda row: row.place)

    def _end(self) -> None:
        self._is_over = self._trajectory.truncated = True
        raise ConversationOver
