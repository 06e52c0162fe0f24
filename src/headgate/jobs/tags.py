"""Tags: words that a job is found by, from its task and from its call."""

from __future__ import annotations

import re
from collections.abc import Iterable

from headgate.errors import DeclarationError

MOST_TAGS = 20
"""How many tags a job may have, those of its task included: each is a row of an index."""

LONGEST_TAG = 64
"""The most characters of a tag."""

_TAG = re.compile(rf"[\w.:=/@+#-]{{1,{LONGEST_TAG}}}")


def parse_tags(tags: object, where: str) -> tuple[str, ...]:
    """Return the tags, given as a list or set of words: each once, sorted. Raises DeclarationError."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise DeclarationError(f'{where}: tags={tags!r:.80} is not a list of tags; write tags=["vip"]')
    found = list(tags)
    for tag in found:
        require_tag(tag, where)
    unique = sorted(set(found))
    if len(unique) > MOST_TAGS:
        raise DeclarationError(
            f"{where} has {len(unique)} tags, more than {MOST_TAGS}; put what differs from job to job into headers="
        )
    return tuple(unique)


def require_tag(tag: object, where: str) -> None:
    """Raise DeclarationError unless it is a valid tag."""
    if isinstance(tag, str) and len(tag) > LONGEST_TAG:
        raise DeclarationError(
            f"{where}: tag {tag!r:.80} has {len(tag)} characters, more than {LONGEST_TAG}; shorten it, or put it into "
            "headers="
        )
    if not isinstance(tag, str) or not _TAG.fullmatch(tag):
        hint = ""
        if isinstance(tag, str) and tag:
            allowed = "".join(each if _TAG.fullmatch(each) else "-" for each in tag).strip("-")
            hint = f"; write {allowed!r}" if allowed else ""
        raise DeclarationError(
            f"{where}: tag {tag!r:.80} must be a word of letters, digits and _ . : = / @ + # -{hint}"
        )
