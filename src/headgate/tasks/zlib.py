"""Compression of payloads and results by zlib."""

from __future__ import annotations

import zlib

from headgate.arguments import parse_bytes, parse_count


class Zlib:
    """Compresses what has at least `above` bytes, if it becomes a quarter smaller; the rest stays as it is.

    `above` is bytes or text like "4KB" (default: 1,024). `level` is from 1, the fastest, to 9 (default: 6). Raises
    DeclarationError.
    """

    name: str = "zlib"

    def __init__(self, above: int | str = 1024, *, level: int = 6) -> None:
        self._above = parse_bytes(above, "above", "Zlib")
        self._level = parse_count(level, "level", "Zlib", most=9)

    def encode(self, data: bytes, /) -> bytes:
        """Return the compressed data, or the data itself if that does not pay."""
        if len(data) < self._above:
            return data
        compressed = zlib.compress(data, self._level)
        # Stored as base64, it takes a third more.
        return compressed if 4 * len(compressed) < 3 * len(data) else data

    def decode(self, data: bytes, /) -> bytes:
        """Return the data. Raises zlib.error if it is damaged."""
        return zlib.decompress(data)

    def __repr__(self) -> str:
        return f"Zlib({self._above}, level={self._level})"
