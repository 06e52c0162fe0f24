"""Ids of jobs and batches: numbers of 63 bits inside, text of 13 characters for people.

The upper 51 bits are microseconds since 2025, then come 11 bits of the producer, and one that is set in ids of batches:
so a job and a batch never have one id, whoever makes them. The text is the number in base 32, so text and numbers have
one order. Statements convert between them; everything else uses the text. An id that a caller chose is other text: its
number is negative, from a hash.

Also the name of a process, which its node and the jobs that it enqueues carry.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import threading
from collections.abc import Awaitable, Callable, Collection
from functools import cache, lru_cache
from itertools import count
from random import Random
from typing import Annotated, TypeVar
from uuid import UUID

from headgate.errors import DeclarationError, StorageUnavailable

STORED_AS_NUMBER = "stored as a number"

JobId = Annotated[str, STORED_AS_NUMBER]
"""The id of a job or a batch, in records that a store reads: its column is a number."""

R = TypeVar("R")

NEW_IDS_TRIES = 10
"""How often jobs get other ids because another producer, which may have the same number, has stored theirs."""

EPOCH = 1_735_689_600_000_000
"""2025-01-01, in microseconds: ids count from here, until 2096."""

PRODUCERS = 1 << 11
"""How many numbers of producers there are."""

_STAMPS = 1 << 51

LOWEST = -(1 << 63) + 1
"""Below the numbers of all ids: that of the empty text, which is below all ids."""

_DIGITS = "0123456789abcdefghijklmnopqrstuv"
_PAIRS = [first + second for first in _DIGITS for second in _DIGITS]
_is_number = re.compile("[0-9a-f][0-9a-v]{12}").fullmatch

_MOST_REMEMBERED = 50_000
_own_texts: dict[int, str] = {}


def job_number(text: str) -> int:
    """Return the number of an id; for text that is not an id, its own negative number."""
    # An id has one text: Python would also read others as its number, such as that in upper case. A pattern is slower.
    if len(text) == 13 and text.isascii() and text.isalnum() and text == text.lower():
        try:
            number = int(text, 32)
        except ValueError:
            number = -1
        if 0 <= number < 1 << 64:
            return number if number < 1 << 63 else number - (1 << 64)
    if not text:
        return LOWEST
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    number = max(-(int.from_bytes(digest, "big") >> 1) - 1, LOWEST + 1)
    # Text that is longer than a UUID is no id, and would fill the memory.
    if len(text) <= 36:
        remember_own(number, text)
    return number


def job_text(number: int) -> str:
    """Return the text of an id's number; if a caller chose the id, the caller's text if this process has it."""
    if number < 0:
        own = _own_texts.get(number)
        if own is not None:
            return own
        if number == LOWEST:
            return ""
        number += 1 << 64
    # The upper digits of the ids of a quarter of a second are the same.
    return _head(number >> 30) + _PAIRS[number >> 20 & 1023] + _PAIRS[number >> 10 & 1023] + _PAIRS[number & 1023]


@lru_cache(10_000)
def _head(upper: int) -> str:
    return _DIGITS[upper >> 30] + _PAIRS[upper >> 20 & 1023] + _PAIRS[upper >> 10 & 1023] + _PAIRS[upper & 1023]


def remember_own(number: int, text: str) -> None:
    """Remember the text of an id that a caller chose."""
    if len(_own_texts) >= _MOST_REMEMBERED:
        # The oldest; a list, because other threads remember texts meanwhile.
        for oldest in list(_own_texts)[: _MOST_REMEMBERED // 10]:
            _own_texts.pop(oldest, None)
    _own_texts[number] = text


def is_own_unknown(number: int | None) -> bool:
    """Whether a caller chose the id with this number, and this process does not have its text."""
    return number is not None and LOWEST < number < 0 and number not in _own_texts


def numbers_beginning(prefix: str) -> tuple[int, int]:
    """Return the lowest and the highest number of ids whose text begins so; the lowest is higher if there are none."""
    text = prefix.ljust(13, "0")
    if not _is_number(text) or text[0] > "7":
        return 1, 0
    return int(text, 32), int(prefix.ljust(13, "v"), 32)


def lowest_made_at(instant: int) -> int:
    """Return the lowest number of an id that is made at `instant` (wall microseconds); own ids are below them."""
    return max(0, instant - EPOCH) << 12


class IdTaken(StorageUnavailable):
    """Another producer has stored jobs or batches under these new ids: give them others, and store them again.

    In a user's transaction, those with other ids may be stored. Anywhere else, nothing is.
    """

    def __init__(self, taken: Collection[str]) -> None:
        ids = ", ".join(sorted(taken)[:3])
        super().__init__(
            f"not enqueued: another producer has just stored a job under the new id {ids}; enqueue it again"
        )
        self.taken: frozenset[str] = frozenset(taken)


async def with_new_ids(store: Callable[[], Awaitable[R]]) -> R:
    """Return the result of `store`, which makes ids and stores under them; call it again while they are taken.

    Raises IdTaken if they are after `NEW_IDS_TRIES` more calls.
    """
    for _ in range(NEW_IDS_TRIES):
        try:
            return await store()
        except IdTaken:
            continue
    return await store()


class IdSource:
    """Creates ids; each is greater than the one before, even when wall time steps back.

    `random` makes them reproducible for tests; the default is the system's randomness. Two processes may have the same
    `producer`, a number; one that is forked gets another. Two sources of one process do not: the store could not tell
    their enqueues apart.
    """

    _numbers = count(int.from_bytes(os.urandom(2), "big"))

    def __init__(self, random: Random | None = None, *, producer: int | None = None) -> None:
        self._random = random
        self._lock = threading.Lock()
        self._last = 0
        self._producer = producer
        self._process = os.getpid()

    @property
    def has_producer(self) -> bool:
        """Whether this process has a number of its own from the store."""
        return self._producer is not None and self._process == os.getpid()

    def set_producer(self, number: int | None) -> None:
        """Use this number of a producer from now on; None for a random one."""
        self._process = os.getpid()
        if number is None:
            number = next(IdSource._numbers) if self._random is None else self._random.getrandbits(11)
        self._producer = number % PRODUCERS

    def next(self, now: int, *, is_batch: bool = False) -> str:
        """Return a new id of a job or a batch that is enqueued at `now` (wall microseconds)."""
        stamp = max(now - EPOCH, 1)
        if not self.has_producer:
            self.set_producer(None)
        # Without a call in it: a signal handler that enqueues there would wait for the thread that it interrupts.
        with self._lock:
            self._last = stamp = stamp if stamp > self._last else self._last + 1
        return job_text((stamp % _STAMPS) << 12 | (self._producer or 0) << 1 | is_batch)

    def unique(self, now: int) -> str:
        """Return a UUID of version 7, for rows that no other process may have the id of: nodes, alerts, requests."""
        return str(
            UUID(int=(now // 1000) << 80 | 7 << 76 | self._random_bits(12) << 64 | 2 << 62 | self._random_bits(62))
        )

    def _random_bits(self, bits: int) -> int:
        if self._random is not None:
            return self._random.getrandbits(bits)
        return int.from_bytes(os.urandom(8), "big") >> 64 - bits


MAX_PROCESS_NAME = 200


@cache
def process_name() -> str:
    """Return the name of this process, `host:pid`; at most 200 characters."""
    host, pid = socket.gethostname().encode("utf-8", "backslashreplace").decode(), str(os.getpid())
    return f"{host[: MAX_PROCESS_NAME - len(pid) - 1]}:{pid}"


def require_process_name(name: object) -> None:
    """Raise DeclarationError unless it can be the name of a process: 1 to 200 printable characters without spaces."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_PROCESS_NAME or not name.isprintable() or " " in name:
        raise DeclarationError(
            f"name={name!r:.80} is not the name of a worker: write 1 to {MAX_PROCESS_NAME} printable characters "
            "without spaces, such as mail-1"
        )


def _forget_process() -> None:
    process_name.cache_clear()
    IdSource._numbers = count(int.from_bytes(os.urandom(2), "big"))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_process)
