"""Rows that several parts of this store read."""

from __future__ import annotations

import msgspec

from headgate.jobs.job import Draw, JobError
from headgate.jobs.terms import GateTerms
from headgate.storage.stored_rows import note_unreadable

_decode_error = msgspec.json.Decoder(JobError).decode

decode_terms = msgspec.json.Decoder(GateTerms).decode
"""What the limits of a job ask."""

decode_draws = msgspec.json.Decoder(tuple[Draw, ...]).decode
"""The draws of a job or a lane."""


class BucketRow(msgspec.Struct, array_like=True):
    """A bucket as it is stored."""

    id: str
    limit: str
    key: str
    state: str | None
    opens_at: int | None
    closed_until: int


def readable_error(job_id: str, text: str | None) -> JobError | None:
    """What a job ended with; None also where it cannot be read."""
    try:
        return None if text is None else _decode_error(text)
    except (msgspec.DecodeError, UnicodeError) as error:
        note_unreadable("job", job_id, f"error: {error}")
        return None
