"""The words of a job: tags, by which it is found, and labels, by which a node says which jobs it can run."""

from __future__ import annotations

import re
from collections.abc import Iterable

from headgate.errors import DeclarationError
from headgate.jobs.annotation import plain

MOST_TAGS = 20
"""How many tags a job may have, those of its task included: each is a row of an index."""

LONGEST_TAG = 64
"""The most characters of a tag."""

MOST_LABELS = 50
"""How many labels a node may have, and a task may require."""

_TAG = re.compile(rf"[\w.:=/@+#-]{{1,{LONGEST_TAG}}}")
_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=/-]{0,62}")


def parse_tags(tags: object, where: str) -> tuple[str, ...]:
    """Return the tags, given as a list or set of words: each once, sorted. Raises DeclarationError."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise DeclarationError(f'{where}: tags={tags!r:.80} is not a list of tags; write tags=["vip"]')
    found = list(tags)
    for tag in found:
        require_tag(tag, where)
    unique = sorted({plain(tag) for tag in found})
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


def parse_labels(labels: object, where: str) -> frozenset[str]:
    """Return the labels, given as a list or set of words. Raises DeclarationError."""
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise DeclarationError(f'{where}={labels!r:.80} is not a set of labels; write {{"gpu"}}')
    found = list(labels)
    for label in found:
        if not isinstance(label, str) or not _LABEL.fullmatch(label):
            raise DeclarationError(
                f"{where}: label {label!r:.80} must be 1 to 63 letters, digits and _ . = / -, the first a letter, "
                "digit or _"
            )
    if len(found) > MOST_LABELS:
        raise DeclarationError(f"{where} has {len(found)} labels, more than {MOST_LABELS}")
    return frozenset(found)


def labels_in(text: str, where: str) -> frozenset[str]:
    """Return the labels of a text such as "gpu,eu". Raises DeclarationError."""
    return parse_labels([word.strip() for word in text.split(",")], where)
