"""Labels: words by which a node says which jobs it can run, and a task what its jobs require."""

from __future__ import annotations

import re
from collections.abc import Iterable

from headgate.errors import DeclarationError

MOST_LABELS = 50

_LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=/-]{0,62}")


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
