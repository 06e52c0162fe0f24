"""Rows that several parts of this store read."""

from __future__ import annotations

import msgspec

from headgate.jobs.job import Draw
from headgate.jobs.terms import GateTerms

decode_terms = msgspec.json.Decoder(GateTerms).decode
"""What the limits of a job ask."""

decode_draws = msgspec.json.Decoder(tuple[Draw, ...]).decode
"""The draws of a job or a lane."""
