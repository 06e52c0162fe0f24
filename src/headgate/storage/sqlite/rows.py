"""Rows that several parts of this store read."""

from __future__ import annotations

import msgspec


class BucketRow(msgspec.Struct, array_like=True):
    id: int
    limit: str
    key: str
    state: str | None
    opens_at: int | None
    closed_until: int


decode_buckets = msgspec.json.Decoder(list[BucketRow]).decode
decode_keys = msgspec.json.Decoder(set[str]).decode
