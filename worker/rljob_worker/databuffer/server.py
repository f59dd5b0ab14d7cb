"""The Flight servers of a data buffer: peers over TCP, workers over a UNIX socket."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.flight as flight

from rljob_worker.databuffer.faults import pending, to_flight
from rljob_worker.databuffer.fencing import MIDDLEWARE, Caller, Fence, Identity
from rljob_worker.databuffer.service import Messages, Service
from rljob_worker.databuffer.wire import Pending
from rljob_worker.errors import RLJobError


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Flight's shell around the service; errors of ours keep their names."""

    def __init__(self, location: str, service: Service, ours: Identity) -> None:
        self._service = service
        super().__init__(location, middleware={MIDDLEWARE: Fence(ours, service.life)})

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[pa.Buffer]:
        caller: Caller = context.get_middleware(MIDDLEWARE)
        try:
            answer = self._service.act(caller.identity, action.type, action.body.to_pybytes())
        except Pending:
            raise pending() from None
        except RLJobError as error:
            raise to_flight(error) from error
        return [pa.py_buffer(json.dumps(answer or {}).encode())]

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        try:
            schema, messages = self._service.stream(ticket.ticket, context.is_cancelled)
        except Pending:
            raise pending() from None
        except RLJobError as error:
            raise to_flight(error) from error
        return flight.GeneratorStream(schema, _named(messages))


def _named(messages: Messages) -> Messages:
    """The same messages; an error of ours in the middle keeps its name."""
    try:
        yield from messages
    except RLJobError as error:
        raise to_flight(error) from error
