"""Live streams of server-sent events: the overview whenever it has changed, at most once a second, and ended jobs."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import StreamingResponse

from headgate.admin import Overview
from headgate.admin.ended import EndFollower, EndQuery, Place, ReadEnds, event_of, place_of_end
from headgate.clock import SECOND, Clock, wait_for_event
from headgate.errors import HeadgateError
from headgate.http.http_error import RETRY_AFTER, HttpError, try_later
from headgate.http.overview_poller import FRESH_FOR, OverviewReading
from headgate.shielding import OutageLock
from headgate.storage.records import EndsRead, StoredEnd


def is_leaving() -> bool:
    """Whether the server was requested to stop, as far as this can be detected.

    A server notifies an app of its shutdown only when all requests have ended, and never notifies a mounted app.
    uvicorn gets a signal, handled by a method of its server, whose `should_exit` then is true. This reads it and
    changes nothing. Without such a server, the result is always False.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", None) is True


MOST_CLIENTS = 500
"""Streams of one process; a browser without a stream polls every few seconds instead."""

MOST_OF_USER = 100
"""Streams of one user, so that no user can take all of them."""

EACH = 1.0
"""Seconds between two readings."""

HEARTBEAT = 15 * SECOND
"""Microseconds of silence after which a comment is sent, so that no proxy closes the stream as dead."""

LIVES = 30 * SECOND
"""How long a stream lasts (microseconds). A browser opens the next one by itself, and is authenticated again; and a
server whose shutdown cannot be detected waits no longer than that for its streams."""

MOST_SHARED = 64
"""How many reads of up to 500 ends are kept for a second, for the other streams."""

LATE = 3.0
"""Seconds after which a reading that has no result yet is reported: the store does not answer."""

UNDER_WSGI = HttpError(
    406, "no_stream", "under WSGI there is no stream; leave out Accept: text/event-stream, and pass `next` as `after`"
)
"""The error of a stream of ended jobs where the event loop of a request ends with it, after the first events."""

_HELLO = b"retry: 2000\n\n"
_ALIVE = b": alive\n\n"
_COME_BACK = b"retry: 100\n\n"
_COME_LATER = b"retry: %d\n\n" % (RETRY_AFTER * 1000)


@dataclass(frozen=True, slots=True)
class StreamListener:
    """The user who listens to a stream, the id of the session in which it began, and whether that `is_current`."""

    user: str = ""
    session: str | None = None
    is_current: Callable[[], bool] = lambda: True


ANYONE = StreamListener()


class Stream:
    """Streams the overview to all browsers of a process from one reader: `look` returns what it has read.

    Nothing is queued for a browser that reads slowly: it is sent the latest overview when it can take it, after a
    `resync` that says that events were skipped. The first event is left out if the browser's Last-Event-ID names it.
    `lost` says that the store does not answer; an overview follows when it answers again, or the stream ends. All
    streams end within a second after the server `is_leaving`.
    """

    def __init__(
        self,
        look: Callable[[], Coroutine[Any, Any, OverviewReading]],
        clock: Clock,
        *,
        most_clients: int = MOST_CLIENTS,
        most_of_user: int = MOST_OF_USER,
        is_leaving: Callable[[], bool] = is_leaving,
    ) -> None:
        self._look = look
        self._clock = clock
        self._most_clients = most_clients
        self._most_of_user = most_of_user
        self._is_leaving = is_leaving
        self._is_ended = False
        # One for each stream, on the loop of that stream: an event works on one loop only, and a site may have several.
        self._endings: dict[asyncio.Event, StreamListener] = {}

    @property
    def clients(self) -> int:
        """How many streams are open."""
        return len(self._endings)

    def end(self) -> None:
        """End all streams, and refuse new ones until `begin`."""
        self._is_ended = True
        for ending in self._endings:
            ending.set()

    def begin(self) -> None:
        """Allow streams again, as at the start."""
        self._is_ended = False

    def end_of(self, user: str, session: str | None = None) -> None:
        """End the streams that began in this session of a user, or in any of theirs."""
        for ending, listener in self._endings.items():
            if listener.user == user and listener.session is not None and session in (None, listener.session):
                ending.set()

    async def response(
        self, request: Request, show: Callable[[Overview], Overview], listener: StreamListener = ANYONE
    ) -> StreamingResponse:
        """Return the stream for one browser, with each overview redacted by `show`, while its session is current.

        Raises HttpError if there are too many, of all or of this user, or the server is stopping; and the error of the
        first read.
        """
        self._require_room(listener.user, "/api/v1/overview")
        first = await self._look()
        return _streamed(self._events(first, show, request.headers.get("last-event-id"), listener))

    async def ends_response(
        self, follower: EndFollower, query: EndQuery, listener: StreamListener = ANYONE
    ) -> StreamingResponse:
        """Return the stream of the ends that match, for one client; the rest is as for `response`."""
        self._require_room(listener.user, "/api/v1/events without Accept: text/event-stream")
        began = follower.cursor
        first = await follower.advance()
        return _streamed(self._ends(follower, began, first, query, listener))

    def _require_room(self, user: str, instead: str) -> None:
        if self._is_ended or self._is_leaving():
            raise HttpError(
                503, "ending", "this server is stopping; try again in a moment", headers=try_later(RETRY_AFTER)
            )
        if self._is_full(user):
            message = f"{self.clients} clients already have a stream, or {self._most_of_user} of {user}; poll "
            raise HttpError(503, "too_many_streams", f"{message}{instead}", headers=try_later(RETRY_AFTER))

    def _is_full(self, user: str) -> bool:
        of_user = sum(listener.user == user for listener in self._endings.values())
        return self.clients >= self._most_clients or of_user >= self._most_of_user

    @contextlib.contextmanager
    def _counted(self, listener: StreamListener) -> Iterator[asyncio.Event]:
        """Count a stream while it lasts; the event is set when it has to end."""
        ending = asyncio.Event()
        self._endings[ending] = listener
        try:
            yield ending
        finally:
            self._endings.pop(ending, None)

    async def _events(
        self, seen: OverviewReading, show: Callable[[Overview], Overview], known: str | None, listener: StreamListener
    ) -> AsyncIterator[bytes]:
        if self._is_full(listener.user):
            # Streams that are requested during the first reading are all admitted before any of them is counted.
            yield _COME_LATER
            return
        with self._counted(listener) as ending:
            began_at = said_at = self._clock.monotonic()
            yield _HELLO
            tag: str | None = known
            revision = seen.revision
            while not ending.is_set() and listener.is_current() and self._clock.monotonic() - began_at < LIVES:
                if seen.tag != tag:
                    if seen.revision > revision + 1:
                        yield _event("resync", seen.tag, b"{}")
                    yield _event("overview", seen.tag, msgspec.json.encode(show(seen.overview)))
                    tag, said_at = seen.tag, self._clock.monotonic()
                elif self._clock.monotonic() - said_at >= HEARTBEAT:
                    yield _ALIVE
                    said_at = self._clock.monotonic()
                revision = seen.revision
                await wait_for_event(self._clock, ending, EACH)
                if self._is_leaving():
                    return
                looking = asyncio.ensure_future(self._look())
                try:
                    await asyncio.wait([looking], timeout=LATE)
                    if not looking.done():
                        yield _event("lost", seen.tag, b"{}")
                        # The overview follows even if it has not changed.
                        tag = None
                    seen = await looking
                except HeadgateError:
                    # The page's own request gets the error; it opens a stream again when the store answers.
                    yield _event("lost", seen.tag, b"{}")
                    return
                finally:
                    looking.cancel()
            if not ending.is_set():
                # The stream has only reached its maximum age: the browser should open the next one at once.
                yield _COME_BACK

    async def _ends(
        self,
        follower: EndFollower,
        sent: Place,
        first: tuple[Sequence[tuple[StoredEnd, Place]], bool],
        query: EndQuery,
        listener: StreamListener,
    ) -> AsyncIterator[bytes]:
        if self._is_full(listener.user):
            yield _COME_LATER
            return
        with self._counted(listener) as ending:
            began_at = said_at = self._clock.monotonic()
            yield _place(sent) + _HELLO
            found, has_more = first
            while not ending.is_set() and listener.is_current() and self._clock.monotonic() - began_at < LIVES:
                events = [event_of(end, cursor) for end, cursor in found if query.matches(end)]
                if events:
                    # In one chunk: the client reads it before the next ends are read from the store.
                    yield b"".join(_event("end", each.cursor, msgspec.json.encode(each)) for each in events)
                    said_at = self._clock.monotonic()
                # What was read after that is not sent yet: a client must not continue behind it.
                sent = follower.cursor
                if not events and self._clock.monotonic() - said_at >= HEARTBEAT:
                    yield _place(sent) + _ALIVE
                    said_at = self._clock.monotonic()
                if not has_more:
                    await wait_for_event(self._clock, ending, EACH)
                if self._is_leaving():
                    return
                try:
                    found, has_more = await follower.advance()
                except HeadgateError:
                    # The client comes back with the id of its last event.
                    yield b"event: lost\ndata: {}\n\n"
                    return
            if not ending.is_set():
                yield _place(sent) + _COME_BACK


class EndReader:
    """Reads ends for all streams of a process: those that have caught up share one pass a second.

    A read is reused for a second by each stream that continues at a place inside it. So a stream that is behind the
    others takes a pass of its own, and then shares theirs.
    """

    def __init__(self, read: ReadEnds, clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self.close()

    def close(self) -> None:
        """Drop what was read; the next read may be on another loop."""
        self._latest: deque[tuple[int, Place, EndsRead]] = deque(maxlen=MOST_SHARED)
        self._reading = OutageLock()

    async def __call__(self, after: Place) -> EndsRead:
        """Return the first ends after a place, as of the last second."""
        async with self._reading:
            now = self._clock.monotonic()
            while self._latest and self._latest[0][0] <= now:
                self._latest.popleft()
            for _, began, read in self._latest:
                if began <= after and (not read.is_full or place_of_end(read.ends[-1]) > after):
                    return read._replace(ends=[end for end in read.ends if place_of_end(end) > after])
            read = await self._read(after)
            self._latest.append((now + FRESH_FOR, after, read))
            return read


def _streamed(events: AsyncIterator[bytes]) -> StreamingResponse:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def _place(sent: Place) -> bytes:
    """Return an id without an event: so a client whose filter matches little does not reread a week."""
    return f"id: {sent}\n".encode()


def _event(name: str, id: str, data: bytes) -> bytes:
    """Return one event. JSON has no line breaks, so it is one line of data."""
    return b"event: %s\nid: %s\ndata: %s\n\n" % (name.encode(), id.encode(), data)
