"""Silence the log of an engine that a command runs for its own purpose."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the log: an engine for a measurement or a simulation has no news for the user."""
    logger = logging.getLogger("headgate")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
