"""The first jobs of lanes, as a claim reads them."""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.jobs.job import JobOptions, Origin
from headgate.storage.claiming import Head
from headgate.storage.postgres.rows import decode_draws, decode_terms
from headgate.storage.stored_rows import RowDecoder

_decode_costs = msgspec.json.Decoder(tuple[int, ...]).decode
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode
_decode_options = msgspec.json.Decoder(JobOptions).decode
_decode_origin = msgspec.json.Decoder(Origin).decode


_HEADS = RowDecoder(Head, "job")


def head_of(row: Any) -> Head:
    """A job near the front of its lane."""
    try:
        return _head_of(row)
    except (msgspec.DecodeError, UnicodeError):
        return _HEADS.repaired(tuple(row))


def _head_of(row: Any) -> Head:
    head = Head(*row)
    # Most jobs have none of these.
    if head.costs is not None:
        head.costs = _decode_costs(row[13])
    if head.headers is not None:
        head.headers = _decode_headers(row[14])
    if head.options is not None:
        head.options = _decode_options(row[15])
    if head.origin is not None:
        head.origin = _decode_origin(row[16])
    if head.terms is not None:
        head.terms = decode_terms(row[17])
    if head.draws is not None:
        head.draws = decode_draws(row[21])
    return head
