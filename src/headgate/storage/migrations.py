"""Migrations: numbered scripts in `storage/sql/migrations` that are applied once each and never edited after a release.

A script is written once, for both databases, with the words of PostgreSQL. SQLite accepts the types: it stores a
`bigint` or a `boolean` as an integer. Where the two differ:

- A line that ends with `-- [postgres]` or `-- [sqlite]` is for that database alone.
- A line `-- [postgres]` or `-- [sqlite]` begins a section for that database alone, up to the next empty line. A script
  with nothing but sections for one database changes nothing in the other.
- SQLite ignores `COLLATE "C"` and `WITH (…)` after the columns of a table.
- PostgreSQL ignores `WITHOUT ROWID`, and what checks the type of a value, because SQLite does not check it by itself:
  `CHECK` with `json_valid(…)`, with `typeof(…)` or with `IN (0, 1)`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headgate.errors import StorageUnusable

MIGRATIONS = Path(__file__).with_name("sql") / "migrations"

_IGNORED = {
    "postgres": re.compile(r" WITHOUT ROWID| CHECK \((?:[^()]*(?:json_valid|typeof)\(\w+\)[^()]*|\w+ IN \(0, 1\))\)"),
    "sqlite": re.compile(r"""\bheadgate\.| COLLATE "C"|(?<=\)) WITH \([^()]*\)"""),
}


class Migration(NamedTuple):
    """One script, `NNNN_name.sql`. If older releases cannot work after it, its first line begins with `-- breaking`.

    `script` is what it says to one database; `checksum` is that of the file.
    """

    number: int
    name: str
    script: str
    checksum: str

    def __str__(self) -> str:
        return f"{self.number:04} {self.name}"

    @property
    def is_breaking(self) -> bool:
        return self.script.startswith("-- breaking")


def load_migrations(database: str, folder: Path = MIGRATIONS) -> Sequence[Migration]:
    """Return the scripts for one database, `postgres` or `sqlite`, in order."""
    found: list[Migration] = []
    (other,) = _IGNORED.keys() - {database}
    for entry in folder.iterdir():
        if entry.name.endswith(".sql"):
            text = entry.read_text(encoding="utf-8")
            number, _, name = entry.name.removesuffix(".sql").partition("_")
            checksum = hashlib.sha256(text.encode()).hexdigest()
            text = re.sub(rf"^(?:-- \[{other}\]\n(?:.+\n?)*|.+ -- \[{other}\](?:\n|\Z))", "", text, flags=re.MULTILINE)
            text = re.sub(rf"^-- \[{database}\]\n| -- \[{database}\]$", "", text, flags=re.MULTILINE)
            found.append(Migration(int(number), name, _IGNORED[database].sub("", text), checksum))
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
