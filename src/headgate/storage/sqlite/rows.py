"""Rows that several parts of this store read."""

from __future__ import annotations

import msgspec

from headgate.limits.concurrency import UNREADABLE
from headgate.storage.stored_rows import RowDecoder


class BucketRow(msgspec.Struct, array_like=True):
    id: str
    limit: str
    key: str
    state: str | None
    opens_at: int | None
    closed_until: int


decode_buckets = RowDecoder(BucketRow, "bucket", state=UNREADABLE).decode
