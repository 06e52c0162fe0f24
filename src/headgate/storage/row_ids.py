"""The ids of lanes and buckets: hashes of their names.

So a job can be added to a lane without reading the lane, and buckets can be locked in the order of their ids before
any of them exists. An id is 128 bits, so that nobody can construct two keys with the same id. It is text of 22
characters, which both databases sort as Python does.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from headgate.jobs.job import Draw

_encode = msgspec.json.Encoder().encode


@lru_cache(100_000)
def bucket_id(draw: Draw) -> str:
    """Return the id of a bucket."""
    return _hash("bucket", draw.limit, draw.key)


@lru_cache(100_000)
def lane_id(queue: str, draws: Sequence[Draw], variant: str) -> str:
    """Return the id of a lane."""
    return _hash("lane", queue, variant, *(part for draw in draws for part in (draw.limit, draw.key)))


def _hash(*parts: str) -> str:
    digest = hashlib.blake2b(_encode(parts), digest_size=16).digest()
    return base64.urlsafe_b64encode(digest)[:22].decode()
