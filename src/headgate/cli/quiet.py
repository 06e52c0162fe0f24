"""Silence of the log, where what a command runs has nothing to say to who runs it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """An engine that runs for a look at it has nothing to say about the machine or the store that it runs on."""
    logger = logging.getLogger("headgate")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
