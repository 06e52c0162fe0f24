"""How lanes and buckets are named in this store, and rows that several parts of it read.

The id of a lane or a bucket is a hash of what it is. So whoever adds a job can name its lane without reading or writing
the lane itself, and whoever claims can lock buckets in the order of their ids before any of them is there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from headgate.jobs.job import Draw, JobError
from headgate.jobs.terms import GateTerms
from headgate.storage.stored_rows import note_unreadable

_encode = msgspec.json.Encoder().encode
_decode_error = msgspec.json.Decoder(JobError).decode

decode_terms = msgspec.json.Decoder(GateTerms).decode
"""What the limits of a job ask."""

decode_draws = msgspec.json.Decoder(tuple[Draw, ...]).decode
"""The draws of a job or a lane."""


class BucketRow(msgspec.Struct, array_like=True):
    """A bucket as it is stored."""

    id: bytes
    limit: str
    key: str
    state: str | None
    opens_at: int | None
    closed_until: int


def as_json(value: Any) -> str:
    """A value as JSON text."""
    return _encode(value).decode()


def optional_json(value: Any) -> str | None:
    """A value as JSON text; None stays NULL."""
    return None if value is None else _encode(value).decode()


def readable_error(job_id: str, text: str | None) -> JobError | None:
    """What a job ended with; None also where it cannot be read."""
    try:
        return None if text is None else _decode_error(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        note_unreadable("job", job_id, f"error: {error}")
        return None


def drawn(draws: Sequence[Draw], chosen: int) -> list[Draw]:
    """Those of the draws of a job that are in a set of them: bit i is the i-th."""
    return [draw for index, draw in enumerate(draws) if chosen >> index & 1]


@lru_cache(100_000)
def bucket_id(draw: Draw) -> bytes:
    """The id of a bucket: 128 bits, so that nobody finds two keys with the same one."""
    return _hash("bucket", draw.limit, draw.key)


@lru_cache(100_000)
def lane_id(queue: str, draws: Sequence[Draw], variant: str) -> bytes:
    """The id of a lane."""
    return _hash("lane", queue, variant, *(part for draw in draws for part in (draw.limit, draw.key)))


def _hash(*parts: str) -> bytes:
    return hashlib.blake2b(_encode(parts), digest_size=16).digest()


def limit_needle(limit: str) -> str:
    """What stands in the draws of whoever draws on a limit, and nowhere else: quotes inside of names are escaped."""
    return f"[{as_json(limit)},"
