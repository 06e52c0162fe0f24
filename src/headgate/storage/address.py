"""Where a store is, in words for operators: several programs that work on one have to mean the same."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class StoreAddress(NamedTuple):
    """The store as it is told, and its file, if it is one."""

    shown: str
    file: Path | None = None

    @property
    def is_missing(self) -> bool:
        """Whether opening the store would make its file."""
        return self.file is not None and not self.file.exists()


def address_of_file(path: Path) -> StoreAddress:
    """A file, by its absolute path."""
    return StoreAddress(str(path), path)
