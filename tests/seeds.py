"""What tests try: the same in each run of the gate, more and other things where HEADGATE_TEST_SEED is set."""

from __future__ import annotations

import os
from random import Random

RUN = os.environ.get("HEADGATE_TEST_SEED")
"""The seed of a nightly run; the same seed repeats it."""


def seeds(first: int, count: int) -> range:
    """Return so many seeds: from `first` in the gate, and others, which follow from its own seed, in a nightly run."""
    start = first if RUN is None else Random(f"{RUN} {first}").randrange(10**6, 10**9)
    return range(start, start + count)


def examples(gate: int, nightly: int) -> int:
    """Return how many examples Hypothesis tries."""
    return gate if RUN is None else nightly
