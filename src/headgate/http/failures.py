"""Failed sign-ins: the turns of answers to an address and a user, and their log lines."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headgate.clock import SECOND, Clock, microseconds
from headgate.http.http_error import HttpError, try_later
from headgate.observe.log_budget import LogBudget

FREE = 3
"""Wrong credentials of a user from an address that are answered at once."""

FIRST_DELAY = 0.5
"""Seconds that the next answer takes; each later one takes twice as long, up to `LONGEST_DELAY`."""

LONGEST_DELAY = 4.0

LONGEST_TURN = 5 * LONGEST_DELAY
"""Seconds for which an answer waits until the answers before it are given; beyond that, requests are refused."""

MOST_CHECKS = 8
"""Different credentials of an address that are checked or wait for it at the same time: half a second on two cores."""

FORGOTTEN_AFTER = 600 * SECOND
"""Microseconds without a failure after which earlier failures are forgotten."""

MOST_REMEMBERED = 10_000
"""Pairs of an address and a user; beyond that, the pair that failed longest ago is forgotten."""

MOST_WRONG = 8
"""Wrong credentials of a pair that are recognised if they are repeated."""

LONGEST_SHOWN = 100
"""Characters of a name or an address in a log line."""

_log = logging.getLogger("headgate.http")


@dataclass(slots=True)
class _Record:
    failed_at: int
    count: int = 0
    wrong: dict[bytes, None] = field(default_factory=dict)
    last_turn: int = 0
    turns: dict[bytes, int] = field(default_factory=dict)


class SignInFailures:
    """Counts wrong credentials by address and user, and gives the answers to such a pair their turns.

    Between two answers to a pair is the delay, however many requests come at once: each answer waits for its turn after
    the last one, whether the credential was right or wrong, so that the time reveals nothing. A request whose turn is
    too far away is refused before its credential is checked, or as if it had not been. Another user at the same
    address, and the same user at another address, do not wait.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Neither names nor guesses are readable in the memory of the process.
        self._key = os.urandom(32)
        self._records: OrderedDict[bytes, _Record] = OrderedDict()
        self._checked: dict[str, dict[bytes, int]] = {}
        self._budget = LogBudget(clock)

    def __len__(self) -> int:
        return len(self._records)

    @contextmanager
    def checking(self, address: str, name: str, credential: str) -> Iterator[None]:
        """Enter while a credential is checked; the same one takes one place. Raises HttpError if there is no place."""
        self._require_turn(self._current(self._pair(address, name)))
        places, digest = self._checked.setdefault(address, {}), self._digest(credential)
        if digest not in places and len(places) >= MOST_CHECKS:
            raise _too_many(1.0)
        places[digest] = places.get(digest, 0) + 1
        try:
            yield
        finally:
            places[digest] -= 1
            if not places[digest]:
                del places[digest]
            if not places:
                self._checked.pop(address, None)

    def delay(self, address: str, name: str) -> float:
        """Return the seconds between two answers."""
        return _delay(self._current(self._pair(address, name)))

    def turn(self, address: str, name: str, credential: str | None) -> float:
        """Take the next turn of a pair, and return the seconds until then; the same credential shares its turn.

        Raises HttpError if it is too far away.
        """
        record, now = self._current(self._pair(address, name)), self._clock.monotonic()
        if record is None or (delay := _delay(record)) == 0:
            return 0.0
        self._require_turn(record)
        digest = None if credential is None else self._digest(credential)
        record.turns = {each: at for each, at in record.turns.items() if at > now}
        at = None if digest is None else record.turns.get(digest)
        if at is None:
            at = record.last_turn = max(now, record.last_turn) + microseconds(delay)
            if digest is not None:
                record.turns[digest] = at
        return (at - now) / SECOND

    def add(self, address: str, name: str, credential: str | None) -> bool:
        """Count a wrong credential and log it. Returns False for one that was counted before.

        The same one is not counted again: a tab or a program that repeats an old password guesses nothing.
        """
        pair = self._pair(address, name)
        record = self._current(pair) or _Record(self._clock.monotonic())
        wrong = None if credential is None else self._digest(credential)
        is_new = wrong is None or wrong not in record.wrong
        if is_new:
            record.count += 1
            if wrong is not None:
                if len(record.wrong) >= MOST_WRONG:
                    del record.wrong[next(iter(record.wrong))]
                record.wrong[wrong] = None
        record.failed_at = self._clock.monotonic()
        self._records[pair] = record
        self._records.move_to_end(pair)
        if len(self._records) > MOST_REMEMBERED:
            self._records.popitem(last=False)
        if self._budget.admits(_log.warning):
            # repr() escapes line breaks, control characters and characters that change the direction of a text.
            _log.warning("failed sign-in of %r from %r", name[:LONGEST_SHOWN], address[:LONGEST_SHOWN])
        return is_new

    def forget(self, address: str, name: str) -> None:
        """Forget the failures of a pair after a right credential."""
        self._records.pop(self._pair(address, name), None)

    def _require_turn(self, record: _Record | None) -> None:
        wait = 0.0 if record is None else (record.last_turn - self._clock.monotonic()) / SECOND
        if wait + _delay(record) > LONGEST_TURN:
            raise _too_many(LONGEST_DELAY)

    def _current(self, pair: bytes) -> _Record | None:
        record = self._records.get(pair)
        if record is not None and self._clock.monotonic() - record.failed_at >= FORGOTTEN_AFTER:
            del self._records[pair]
            return None
        return record

    def _pair(self, address: str, name: str) -> bytes:
        return self._digest(f"{address}\0{name}")

    def _digest(self, text: str) -> bytes:
        content = text.encode("utf-8", "surrogatepass")
        return hmac.digest(self._key, content, hashlib.sha256)[:16]


def _delay(record: _Record | None) -> float:
    beyond = 0 if record is None else record.count - FREE
    if beyond <= 0:
        return 0.0
    return min(FIRST_DELAY * 2.0 ** min(beyond - 1, 10), LONGEST_DELAY)


def _too_many(seconds: float) -> HttpError:
    return HttpError(
        503,
        "too_many_sign_ins",
        "too many credentials from your address wait to be checked; try again in a moment",
        headers=try_later(seconds),
    )
