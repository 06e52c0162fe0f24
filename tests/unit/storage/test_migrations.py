"""One script for two databases: each gets its own lines, and none of the words that only the other one has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headgate.storage.migrations import MIGRATIONS, load_migrations

SCRIPT = """\
-- A word for each colour.
CREATE TABLE headgate.colour (
    id    bigint PRIMARY KEY, -- [postgres]
    id    integer PRIMARY KEY, -- [sqlite]
    -- As people say it.
    name  text COLLATE "C" NOT NULL CHECK (name <> ''),
    tags  text CHECK (tags IS NULL OR json_valid(tags)),
    seen  bigint NOT NULL CHECK (typeof(seen) = 'integer'),
    warm  boolean NOT NULL DEFAULT false CHECK (warm IN (0, 1)),
    CHECK (seen IN (0, 1, 2))
) WITH (fillfactor = 70) WITHOUT ROWID;

-- [postgres]
-- By summaries of pages.
CREATE INDEX colour_seen ON headgate.colour USING brin (seen)
    WITH (pages_per_range = 32);

-- [sqlite]
CREATE INDEX colour_seen ON headgate.colour (seen);
CREATE INDEX colour_warm ON headgate.colour (warm) WHERE warm; -- [sqlite]
"""

POSTGRES = """\
-- A word for each colour.
CREATE TABLE headgate.colour (
    id    bigint PRIMARY KEY,
    -- As people say it.
    name  text COLLATE "C" NOT NULL CHECK (name <> ''),
    tags  text,
    seen  bigint NOT NULL,
    warm  boolean NOT NULL DEFAULT false,
    CHECK (seen IN (0, 1, 2))
) WITH (fillfactor = 70);

-- By summaries of pages.
CREATE INDEX colour_seen ON headgate.colour USING brin (seen)
    WITH (pages_per_range = 32);

"""

SQLITE = """\
-- A word for each colour.
CREATE TABLE colour (
    id    integer PRIMARY KEY,
    -- As people say it.
    name  text NOT NULL CHECK (name <> ''),
    tags  text CHECK (tags IS NULL OR json_valid(tags)),
    seen  bigint NOT NULL CHECK (typeof(seen) = 'integer'),
    warm  boolean NOT NULL DEFAULT false CHECK (warm IN (0, 1)),
    CHECK (seen IN (0, 1, 2))
) WITHOUT ROWID;


CREATE INDEX colour_seen ON colour (seen);
CREATE INDEX colour_warm ON colour (warm) WHERE warm;
"""


@pytest.mark.parametrize(("database", "script"), [("postgres", POSTGRES), ("sqlite", SQLITE)])
def test_a_script_is_read_as_one_database_takes_it(tmp_path: Path, database: str, script: str) -> None:
    (tmp_path / "0002_colours.sql").write_text(SCRIPT)
    (found,) = load_migrations(database, tmp_path)
    assert (found.number, found.name, found.script) == (2, "colours", script)


def test_a_script_for_one_database_changes_nothing_in_the_other(tmp_path: Path) -> None:
    (tmp_path / "0002_seen.sql").write_text("-- [postgres]\nCREATE INDEX seen ON headgate.colour (seen);\n")
    (tmp_path / "0003_warm.sql").write_text("CREATE INDEX warm ON headgate.colour (warm); -- [sqlite]\n")
    assert [each.script for each in load_migrations("postgres", tmp_path)][1:] == [""]
    assert [each.script for each in load_migrations("sqlite", tmp_path)][:1] == [""]


def test_both_databases_have_the_same_versions() -> None:
    postgres, sqlite = load_migrations("postgres"), load_migrations("sqlite")
    assert [(each.number, each.name, each.checksum) for each in postgres] == [
        (each.number, each.name, each.checksum) for each in sqlite
    ]


def test_a_script_names_no_other_database() -> None:
    for path in MIGRATIONS.iterdir():
        assert set(re.findall(r"-- \[(\w+)\]", path.read_text())) <= {"postgres", "sqlite"}, path
