"""Migrations: numbered scripts that are applied once each and never edited after a release."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headgate.errors import StorageUnusable


class Migration(NamedTuple):
    """One script, `NNNN_name.sql`. If older releases cannot work after it, its first line begins with `-- breaking`."""

    number: int
    name: str
    script: str
    checksum: str

    def __str__(self) -> str:
        return f"{self.number:04} {self.name}"

    @property
    def is_breaking(self) -> bool:
        return self.script.startswith("-- breaking")


def load_migrations(package: str) -> Sequence[Migration]:
    """Return the scripts in the folder `migrations` of a package of this program, in order."""
    return read_migrations(Path(__file__).parents[2].joinpath(*package.split("."), "migrations"))


def read_migrations(folder: Path) -> Sequence[Migration]:
    """Return the scripts in a folder, in order."""
    found: list[Migration] = []
    for entry in folder.iterdir():
        if entry.name.endswith(".sql"):
            script = entry.read_text(encoding="utf-8")
            number, _, name = entry.name.removesuffix(".sql").partition("_")
            found.append(Migration(int(number), name, script, hashlib.sha256(script.encode()).hexdigest()))
    return sorted(found)


def require_none(missing: Sequence[Migration], known: Sequence[Migration], *, absent: str, where: str) -> None:
    """Raise StorageUnusable if a `known` migration is missing; `absent` is the message if all of them are."""
    if not missing:
        return
    if len(missing) == len(known):
        problem = absent
    else:
        older = known[known.index(missing[0]) - 1]
        problem = f"{where} is at version {older}, and this program needs version {known[-1]}"
    raise StorageUnusable(f"{problem}: run `headgate migrate APP`, or pass Headgate(migrate=True)")


def pending(
    known: Sequence[Migration],
    applied: Mapping[int, tuple[str, str]],
    where: str,
    tolerated: Collection[int] = (),
) -> list[Migration]:
    """Return the migrations that are still to be applied, after comparing the `applied` ones with the known ones.

    Raises StorageUnusable for a database of a newer release, unless all its unknown migrations are `tolerated`, and for
    one with another checksum.
    """
    by_number = {migration.number: migration for migration in known}
    for number, (name, checksum) in applied.items():
        if number not in by_number and number in tolerated:
            continue
        if number not in by_number:
            raise StorageUnusable(
                f"{where} was written by a newer Headgate (migration {number} {name!r} is unknown here); "
                "upgrade this program"
            )
        if by_number[number].checksum != checksum:
            raise StorageUnusable(
                f"migration {number} {name!r} of {where} differs from this program's; one of the two was edited: "
                "install the release that made the database"
            )
    return [migration for migration in known if migration.number not in applied]
