"""Failed sign-ins: the delay of the next answer, and their log lines."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
from collections import OrderedDict
from dataclasses import dataclass, field

from headgate.clock import SECOND, Clock
from headgate.observe.log_budget import LogBudget

FREE = 3
"""Wrong credentials of a user from an address that are answered at once."""

FIRST_DELAY = 0.5
"""Seconds that the next answer takes; each later one takes twice as long, up to `LONGEST_DELAY`."""

LONGEST_DELAY = 4.0

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


class SignInFailures:
    """Counts wrong credentials by address and user, and computes how long an answer to such a pair is delayed.

    An answer is delayed whether the credential was right or wrong, so that the delay reveals nothing, and a right one
    is accepted in the end. Another user at the same address, and the same user at another address, are not delayed.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Neither names nor guesses are readable in the memory of the process.
        self._key = os.urandom(32)
        self._records: OrderedDict[bytes, _Record] = OrderedDict()
        self._budget = LogBudget(clock)

    def __len__(self) -> int:
        return len(self._records)

    def delay(self, address: str, name: str) -> float:
        """Return the seconds for which the answer is delayed."""
        record = self._current(self._pair(address, name))
        beyond = 0 if record is None else record.count - FREE
        if beyond <= 0:
            return 0.0
        return min(FIRST_DELAY * 2.0 ** min(beyond - 1, 10), LONGEST_DELAY)

    def add(self, address: str, name: str, credential: str | None) -> None:
        """Count a wrong credential and log it.

        The same one is not counted again: a tab or a program that repeats an old password guesses nothing.
        """
        pair = self._pair(address, name)
        record = self._current(pair) or _Record(self._clock.monotonic())
        wrong = None if credential is None else self._digest(credential)
        if wrong is None or wrong not in record.wrong:
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

    def forget(self, address: str, name: str) -> None:
        """Forget the failures of a pair after a right credential."""
        self._records.pop(self._pair(address, name), None)

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
