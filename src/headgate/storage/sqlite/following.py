"""Reading batches of a SQLite file."""

from __future__ import annotations

from headgate.jobs.batch import BatchRecord
from headgate.storage.stored_rows import RowDecoder

decode_batches = RowDecoder(BatchRecord, "batch").decode
