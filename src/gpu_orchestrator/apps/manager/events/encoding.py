"""Events as they are sent. Each is encoded once, and a batch joined once for all watchers that see the same.

`event_feed.py` makes batches; `http/event_streams.py` writes them. A server does not mask its WebSocket
frames, so all watchers get the same bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from gpu_orchestrator.adapters.store.events import Entry, Id, id_of
from gpu_orchestrator.api import websocket
from gpu_orchestrator.apps.manager import schema, views

RESET = "reset"
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class EncodedEvent:
    """An event as JSON. `owner` owns the task that it concerns, empty if it concerns everybody."""

    id: Id
    owner: str
    event: schema.Event
    json: bytes

    @property
    def server_sent(self) -> bytes:
        """Return the event as a server-sent event."""
        head = f"id: {self.event.id}\nevent: {self.event.event}\ndata: "
        return b"%b%b\n\n" % (head.encode(), self.json)

    @property
    def socket_frame(self) -> bytes:
        """Return the event as a WebSocket frame."""
        return websocket.encoded(websocket.TEXT, self.json)

    def is_seen_by(self, sees: str) -> bool:
        """Return True for events of this owner's tasks, or of any task if it is empty, and of the cluster."""
        return not self.owner or sees in ("", self.owner)


@dataclass(frozen=True, slots=True)
class Batch:
    """The next events after one position, for all watchers there; `last` is their position afterwards."""

    events: Sequence[EncodedEvent]
    last: Id
    _joined: dict[tuple[bool, str], bytes] = field(default_factory=dict)

    def server_sent(self, sees: str) -> bytes:
        return self._join((False, sees), lambda each: each.server_sent)

    def socket_frames(self, sees: str) -> bytes:
        return self._join((True, sees), lambda each: each.socket_frame)

    def _join(self, kind: tuple[bool, str], frame: Callable[[EncodedEvent], bytes]) -> bytes:
        joined = self._joined.get(kind)
        if joined is None:
            sees = kind[1]
            joined = self._joined[kind] = b"".join(
                frame(each) for each in self.events if each.is_seen_by(sees)
            )
        return joined


def encoded(entry: Entry) -> EncodedEvent:
    event = schema.Event(
        id=entry.id,
        event=entry.name,
        timestamp=views.when(entry.at_ms) or "",
        data=msgspec.Raw(entry.data),
    )
    return EncodedEvent(id_of(entry.id), entry.owner, event, _encode(event))


def reset(missed: Id, at: Id) -> EncodedEvent:
    """Return the event for: events after `missed` are gone, reload the full state, resume from `at`."""
    why = {
        "after": str(missed),
        "reason": "events after this one are no longer kept; reload the full state",
    }
    event = schema.Event(id=str(at), event=RESET, timestamp="", data=msgspec.Raw(_encode(why)))
    return EncodedEvent(at, "", event, _encode(event))
