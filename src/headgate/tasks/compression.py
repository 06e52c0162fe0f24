"""Compression of payloads and results, by zlib and by Zstandard."""

from __future__ import annotations

import zlib
from types import ModuleType
from typing import Any

from headgate.arguments import parse_bytes, parse_count
from headgate.errors import DeclarationError
from headgate.keywords import names_keywords


class _Compression:
    """Compresses with a module such as `zlib`: what has at least `above` bytes, if it becomes a quarter smaller."""

    def __init__(self, module: Any, above: int | str, level: int, most: int) -> None:
        kind = type(self).__name__
        self._module = module
        self._above = parse_bytes(above, "above", kind)
        self._level = parse_count(level, "level", kind, most=most)

    def encode(self, data: bytes, /) -> bytes:
        """Return the compressed data, or the data itself if that does not pay."""
        if len(data) < self._above:
            return data
        compressed: bytes = self._module.compress(data, self._level)
        # Stored as base64, it takes a third more.
        return compressed if 4 * len(compressed) < 3 * len(data) else data

    def decode(self, data: bytes, /) -> bytes:
        """Return the data. Raises the error of the module if it is damaged."""
        decoded: bytes = self._module.decompress(data)
        return decoded

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._above}, level={self._level})"


@names_keywords
class Zlib(_Compression):
    """Compresses what has at least `above` bytes, if it becomes a quarter smaller; the rest stays as it is.

    `above` is bytes or text like "4KB" (default: 1,024). `level` is from 1, the fastest, to 9 (default: 6). Raises
    DeclarationError.
    """

    name: str = "zlib"

    def __init__(self, above: int | str = 1024, *, level: int = 6) -> None:
        super().__init__(zlib, above, level, most=9)


@names_keywords
class Zstd(_Compression):
    """Compresses as `Zlib` does, faster and often better: what has at least `above` bytes, if it pays.

    `above` is bytes or text like "4KB" (default: 1,024). `level` is from 1, the fastest, to 19 (default: 3). Before
    Python 3.14 it needs `headgate[zstd]`. Raises DeclarationError.
    """

    name: str = "zstd"

    def __init__(self, above: int | str = 1024, *, level: int = 3) -> None:
        super().__init__(_module(), above, level, most=19)


def _module() -> ModuleType:
    """Return the module of Python 3.14, or its backport. Raises DeclarationError without one."""
    from importlib import import_module

    for name in ("compression.zstd", "backports.zstd"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise DeclarationError(
        'Zstd needs Python 3.14, or the package backports.zstd; install it: pip install "headgate[zstd]"'
    )
