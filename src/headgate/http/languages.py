"""The languages of the dashboard: English texts in the code, and a catalogue of translations per other language."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from starlette.requests import Request

SOURCE = "en"
"""The language of the texts in the code."""

CATALOGUES = Path(__file__).parent / "languages"
"""One file per language, such as `de.json`, by English texts; a text with a count has one for each plural form."""

COOKIE = "headgate_language"
"""The cookie with the language that a user has chosen; scripts of the dashboard set it."""

Catalogue = Mapping[str, str | Mapping[str, str]]

_RANGE = re.compile(r"\s*([a-zA-Z]{1,8})(?:-[\w-]+)?\s*(?:;\s*q=([01](?:\.\d{0,3})?)\s*)?")


@cache
def languages() -> tuple[str, ...]:
    """Return the codes of all languages, English first."""
    return (SOURCE, *sorted(path.stem for path in CATALOGUES.glob("*.json")))


@cache
def catalogue(language: str) -> Catalogue:
    """Return the translations by English text; none for English."""
    if language == SOURCE:
        return {}
    found: Catalogue = json.loads((CATALOGUES / f"{language}.json").read_text("utf-8"))
    return found


def translated(text: str, language: str) -> str:
    """Return the translation of a text without counts, or the English text if there is none."""
    found = catalogue(language).get(text)
    return found if isinstance(found, str) else text


def language_of(request: Request) -> str:
    """Return the language that the user has chosen, or the first one of the browser that there is, or English."""
    chosen = request.cookies.get(COOKIE)
    if chosen in languages():
        return chosen
    ranges = map(_RANGE.fullmatch, request.headers.get("accept-language", "").split(","))
    preferences = [(float(found[2] or 1), found[1].lower()) for found in ranges if found is not None]
    # Sorting is stable: of those with the same weight, the first one counts.
    preferences.sort(key=lambda each: -each[0])
    return next((name for weight, name in preferences if weight > 0 and name in languages()), SOURCE)
