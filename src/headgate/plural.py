"""Counts with their nouns, for texts that people read."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return "1 job", "2 jobs" or "12,000 jobs"; `noun` is the singular, and its plural ends in "s"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
