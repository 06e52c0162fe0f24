"""The address of a store as text for operators. All programs that use one store print the same address."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class StoreAddress(NamedTuple):
    """The address of a store as it is shown, and the file of the store if it is in one."""

    shown: str
    file: Path | None = None

    @property
    def is_missing(self) -> bool:
        """Whether the file does not exist yet, so that opening the store would create it."""
        return self.file is not None and not self.file.exists()


def address_of_file(path: Path) -> StoreAddress:
    """Return the address of a file: its absolute path."""
    return StoreAddress(str(path), path)
