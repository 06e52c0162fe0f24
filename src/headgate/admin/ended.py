"""The feed of ended jobs: what became final, in the order of the ends, at least once.

**What is promised**: a follower that continues after the cursor of its last event gets each end that is still stored,
if the transaction that wrote it was committed within `LOOK_BACK` of the instant it carries. It may get an end again;
the id of an event tells it.

An end becomes visible when it is committed, later than its instant, so ends that were read are not all that there are
before the last of them. Hence a cursor is never later than `LOOK_BACK` before the first read of its pass that came that
near to the present. A follower reads from there on in each pass, and remembers what it has returned of that time.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal, NamedTuple, TypedDict, get_args

import msgspec

from headgate.arguments import parse_instant
from headgate.clock import SECOND, Clock, sleep
from headgate.errors import DeclarationError, TooManySearches
from headgate.jobs.identity import LOWEST, job_number
from headgate.jobs.job import JobState
from headgate.jobs.query import Key, Name
from headgate.limits.key import bucket_key, shown_key
from headgate.storage.endings import EXPIRED_ERROR
from headgate.storage.records import EndsRead, StoredEnd
from headgate.storage.store import Store
from headgate.views import view_of

LOOK_BACK = 10 * SECOND
"""Microseconds within which the transaction of an end has to be committed."""

AT_ONCE = 500
"""How many ends are read at once."""

EACH = 1.0
"""Seconds between two passes of a follower."""

EndKind = Literal["succeeded", "failed", "cancelled", "skipped", "expired"]
EndState = Literal["succeeded", "failed", "cancelled", "skipped"]

_CURSOR = re.compile(r"(\d{1,18})\.(-?\d{1,19})(?:~(\d{1,18}))?").fullmatch


_NEVER = 10**18 - 1


class Place(NamedTuple):
    """A place in the order of ends: an instant (wall microseconds), and the number of a job that ended then."""

    at: int
    number: int = LOWEST

    def __str__(self) -> str:
        return f"{self.at}.{self.number}"


ReadEnds = Callable[[Place], Awaitable[EndsRead]]
"""Return the first ends after a place."""


class EndEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A job became final.

    `id` is unique to this end: a job that is retried ends again, with another id. To continue after this event, pass
    its `cursor`. The `kind` is its state, or "expired" for a job that did not start in time, whatever its state.
    `limits` are the limits that it used, with their keys. `error` is the type of its last error.
    """

    id: str
    cursor: str
    kind: EndKind
    state: EndState
    job: str
    task: str
    queue: str
    limits: Sequence[tuple[str, str]]
    tags: Sequence[str]
    batch: str | None
    attempt: int
    finished_at: datetime
    error: str | None


class EndCriteria(TypedDict, total=False):
    """The fields of `EndQuery` as keywords, for type checkers."""

    task: str | None
    queue: str | None
    limit: str | None
    key: str | None
    tag: str | None
    state: EndState | None


class EndQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ends that match all given fields; `limit` and `key` match one bucket. Raises DeclarationError."""

    task: Annotated[Name | None, msgspec.Meta(description="Only jobs of this task.")] = None
    queue: Annotated[Name | None, msgspec.Meta(description="Only jobs of this queue.")] = None
    limit: Annotated[Name | None, msgspec.Meta(description="Only jobs that use this limit.")] = None
    key: Annotated[Key | None, msgspec.Meta(description="Only jobs that use a limit for this key.")] = None
    tag: Annotated[Name | None, msgspec.Meta(description="Only jobs with this tag.")] = None
    state: Annotated[EndState | None, msgspec.Meta(description="Only jobs that ended in this state.")] = None

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in get_args(EndState):
            raise DeclarationError(f"state={self.state!r} must be one of {', '.join(get_args(EndState))}")

    def matches(self, end: StoredEnd) -> bool:
        """Return whether the end has all these fields."""
        key = None if self.key is None else shown_key(bucket_key(self.key))
        return (
            self.task in (None, end.task)
            and self.queue in (None, end.queue)
            and self.state in (None, end.state.value)
            and (self.tag is None or self.tag in _tags(end))
            and (
                (self.limit is None and key is None)
                or any(self.limit in (None, ref.limit) and key in (None, shown_key(ref.key)) for ref in end.buckets)
            )
        )


@dataclass(frozen=True, slots=True)
class EndPage:
    """Ends, the first ones first. `next` is the `after` of the next page, never None.

    If `has_more`, request that page at once, else a second later: until ten seconds after its end, a job comes again.
    """

    items: Sequence[EndEvent]
    next: str
    has_more: bool


def place_of(after: str | datetime | None, now: int) -> Place:
    """Return the place of a cursor or an instant; None: the ends of the last ten seconds. Raises DeclarationError."""
    return min(_begin_of(after, now))


def _begin_of(after: str | datetime | None, now: int) -> tuple[Place, Place]:
    """Return the place that a pass has reached, and the place that is settled since its first read."""
    if not isinstance(after, str):
        place = Place(now - LOOK_BACK if after is None else parse_instant(after, "after"))
        return place, Place(_NEVER)
    found = _CURSOR(after)
    if found is None or not LOWEST <= int(found[2]) < 1 << 63:
        raise DeclarationError(
            f"after={after!r:.80} is no cursor; pass the `cursor` of your last event, the last page's `next`, or an "
            "aware datetime"
        )
    return Place(int(found[1]), int(found[2])), Place(int(found[3] or _NEVER))


async def end_page(storage: Store, after: str | datetime | None, query: EndQuery, count: int) -> EndPage:
    """Return the next ends that match, among up to `count` that are read. A pass over the last ends has many pages."""
    began, settled = _begin_of(after, storage.now())
    read = await storage.ended(*began, count)
    # Not before the place from which the caller wants ends.
    settled = max(min(began, settled), min(settled, Place(read.now - LOOK_BACK)))
    items = [event_of(end, min(place_of_end(end), settled)) for end in read.ends if query.matches(end)]
    reached = place_of_end(read.ends[-1]) if read.is_full else settled
    return EndPage(items, str(reached) if reached <= settled else f"{reached}~{settled.at}", read.is_full)


class EndFollower:
    """Returns ends after a place, each once; `read` may return ends that were read up to a second ago."""

    def __init__(self, read: ReadEnds, after: Place) -> None:
        self._read = read
        self._begin = self._reached = after
        self._settled: Place | None = None
        self._returned: set[Place] = set()

    @property
    def cursor(self) -> Place:
        """The cursor to continue from, after all that was returned."""
        return self._begin if self._settled is None else min(self._reached, self._settled)

    async def advance(self) -> tuple[Sequence[tuple[StoredEnd, Place]], bool]:
        """Return the next ends, each with its cursor, and whether more may follow at once."""
        began = self._reached
        read = await self._read(began)
        if self._settled is None or began <= self._settled:
            # Else it has passed places before which something was committed meanwhile, and does not see that.
            self._settled = max(began, Place(read.now - LOOK_BACK))
        settled = self._settled
        found: list[tuple[StoredEnd, Place]] = []
        for end in read.ends:
            self._reached = place = place_of_end(end)
            if place not in self._returned:
                found.append((end, min(place, settled)))
                if place > settled:
                    self._returned.add(place)
        if not read.is_full:
            self._begin = self._reached = settled
            self._returned = {place for place in self._returned if place > self._begin}
            self._settled = None
        return found, read.is_full


async def follow(
    storage: Store, clock: Clock, after: str | datetime | None, query: EndQuery
) -> AsyncIterator[EndEvent]:
    """Return the ends that match as they come, for ever, also while searches of others take all turns."""
    follower = EndFollower(lambda place: storage.ended(*place, AT_ONCE), place_of(after, storage.now()))
    while True:
        try:
            found, has_more = await follower.advance()
        except TooManySearches:
            await sleep(clock, EACH)
            continue
        for end, cursor in found:
            if query.matches(end):
                yield event_of(end, cursor)
        if not has_more:
            await sleep(clock, EACH)


def event_of(end: StoredEnd, cursor: Place) -> EndEvent:
    """Return the event of an end."""
    state: EndState = end.state.value  # type: ignore[assignment]  # final jobs have no other
    return view_of(
        EndEvent,
        end,
        id=str(place_of_end(end)),
        cursor=str(cursor),
        kind="expired" if end.error == EXPIRED_ERROR.type and end.state is not JobState.SUCCEEDED else state,
        state=state,
        job=end.id,
        limits=[(ref.limit, shown_key(ref.key)) for ref in end.buckets],
        tags=_tags(end),
    )


def _tags(end: StoredEnd) -> Sequence[str]:
    return () if end.options is None else end.options.tags


def place_of_end(end: StoredEnd) -> Place:
    """Return the place of an end."""
    return Place(end.finished_at, job_number(end.id))
