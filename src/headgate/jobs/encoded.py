"""Encoded texts: what is stored of a payload or a result that a codec has encoded. They can never be JSON."""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from typing import NamedTuple

MARK = "encoded:"
"""How an encoded text begins; no JSON text begins with this letter. Statements find encoded texts by it."""

FOLDER = "folder"
"""Named after the codecs of a text whose data is in the folder of large payloads; the stored data says where."""

_BETWEEN = "+"

_LONGEST_REFERENCE = 2000
"""Characters of the longest text that refers to a folder: others need not be parsed."""


class Encoded(NamedTuple):
    """The bytes of an encoded text, and the names of the codecs that have encoded them, the first one first."""

    codecs: tuple[str, ...]
    data: bytes


def is_encoded(text: str) -> bool:
    """Return whether a stored text is encoded; otherwise it is JSON."""
    return text.startswith(MARK)


def write_encoded(codecs: Sequence[str], data: bytes) -> str:
    """Return the text that is stored: `encoded:<codec>+<codec>:<base64>`."""
    return f"{MARK}{_BETWEEN.join(codecs)}:{binascii.b2a_base64(data, newline=False).decode('ascii')}"


def read_encoded(text: str) -> Encoded:
    """Return the parts of an encoded text. Raises ValueError if it is damaged."""
    _, names, data = text.split(":", 2)
    return Encoded(tuple(names.split(_BETWEEN)), binascii.a2b_base64(data.encode("ascii"), strict_mode=True))


def is_in_folder(text: str) -> bool:
    """Return whether the data of a stored text is in the folder of large payloads."""
    return len(text) <= _LONGEST_REFERENCE and is_encoded(text) and codecs_of(text)[-1:] == (FOLDER,)


def codecs_of(text: str) -> tuple[str, ...]:
    """Return the names of the codecs that have encoded a stored text; none if it is JSON."""
    return tuple(text.split(":", 2)[1].split(_BETWEEN)) if is_encoded(text) else ()


def shown_encoded(text: str) -> str:
    """Return what users see instead of an encoded text."""
    return f"[encoded: {', '.join(codecs_of(text))}]"
