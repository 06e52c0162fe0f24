"""Advice about a misspelled name."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return how an error about an unknown name goes on: `"; did you mean 'stripe'?"`, or `"."` if none is close."""
    import difflib  # Only a mistake needs it, and importing Headgate is to stay cheap.

    close = difflib.get_close_matches(str(name), [str(each) for each in known], n=1)
    return f"; did you mean {close[0]!r}?" if close else "."
