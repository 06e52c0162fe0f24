"""Giving back permits, and looking for those that nobody holds, in a SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from headgate.jobs.batch import BatchRecord
from headgate.jobs.job import Draw
from headgate.storage import permits
from headgate.storage.driver import Transaction, run_to_end
from headgate.storage.live_rules import LiveRules
from headgate.storage.permits import Holder, PermitBucket
from headgate.storage.procedures.settings import read_settings
from headgate.storage.sqlite.rows import decode_buckets
from headgate.storage.sqlite.statements import as_json, fetch
from headgate.storage.stored_rows import RowDecoder

_decode_batches = RowDecoder(BatchRecord, "batch").decode
_decode_holders = RowDecoder(Holder, "job").decode


def contradictions(connection: sqlite3.Connection, tx: Transaction) -> Iterator[str]:
    """Where buckets and jobs do not agree on who holds permits, one sentence each."""
    buckets = decode_buckets(fetch(connection, "buckets_of_permits"))
    found = {Draw(row.limit, row.key): PermitBucket(row.state, row.opens_at) for row in buckets}
    holding = permits.holding_batches(bucket.state for bucket in found.values())
    batches = _decode_batches(fetch(connection, "batches", ids=as_json(sorted(holding))))
    pending = {batch.id for batch in batches if batch.pending}
    rules = LiveRules(run_to_end(read_settings(tx)))
    return permits.contradictions(_decode_holders(fetch(connection, "holders")), found, pending, rules)
