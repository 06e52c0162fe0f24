"""A waiting job and its limits, when a deploy has changed what they are."""

from __future__ import annotations

import msgspec

from headgate.jobs.job import Draw
from headgate.jobs.terms import GateTerms


class GatedJob(msgspec.Struct, frozen=True, array_like=True):
    """What a waiting job asks of its limits, and what that is computed from."""

    id: str
    task: str
    queue: str
    payload: str
    headers: dict[str, str] | None
    draws: tuple[Draw, ...]
    costs: tuple[int, ...] | None
    terms: GateTerms | None


class Regated(msgspec.Struct, frozen=True, array_like=True):
    """What the job asks from now on, if it still waits and asks what it did `before`."""

    id: str
    before: tuple[Draw, ...]
    draws: tuple[Draw, ...]
    costs: tuple[int, ...] | None
    terms: GateTerms | None
