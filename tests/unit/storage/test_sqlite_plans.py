"""Statements find their rows by an index on SQLite, also after somebody has analyzed the file."""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest

from headgate import Headgate, RateLimit, batch
from headgate.storage.sqlite.connection import migrate
from headgate.storage.sqlite.dialect import STATEMENTS
from headgate.storage.sqlite.memory import IN_MEMORY
from headgate.testing.manual_clock import ManualClock

READ_FOR_PEOPLE = frozenset({
    "check", "count_known", "count_known_jobs", "count_lanes_to_search", "jobs_known_newest", "jobs_known_oldest",
    "jobs_of_batch", "lanes_in_turn", "starts", "waiting",
})  # fmt: skip


@pytest.mark.parametrize("jobs", [5, 500])
async def test_what_is_known_of_the_tables_does_not_change_how_a_job_is_found(tmp_path: Path, jobs: int) -> None:
    """The fault: after ANALYZE on a small file, each claim read all jobs, and for its lanes without limits all lanes.

    Other programs analyze a file, too: `PRAGMA optimize` is what many do with each connection that they close.
    """
    file = tmp_path / "jobs.db"
    app = Headgate(f"sqlite:///{file}")

    @app.task(limits=[RateLimit("15/m", key="{tenant}")])
    async def sync(tenant: str) -> None: ...

    async with app.open():
        await sync.enqueue_many([(str(number % 3),) for number in range(jobs)])
    before = plans(file)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("ANALYZE")
    after = plans(file)
    assert "SEARCH job USING INTEGER PRIMARY KEY (rowid=?)" in before["heads"]
    for name, steps in after.items():
        if name not in READ_FOR_PEOPLE:
            more = {step for step in steps - before[name] if re.match(r"SCAN|BLOOM|.*AUTOMATIC", step)}
            assert not more, f"{name}: {more} instead of {before[name] - steps}"


async def test_the_first_job_of_a_lane_is_found_by_an_index(tmp_path: Path) -> None:
    """The fault: with 300,000 jobs, the sweep for jobs of unknown limits took 33 s; PostgreSQL cut it off after 30."""
    file = tmp_path / "jobs.db"
    async with Headgate(f"sqlite:///{file}").open():
        pass
    steps = plans(file)["jobs_of_other_limits"]
    assert "SEARCH job USING INDEX job_undelayed (lane=?)" in steps
    assert not any(step.startswith("SCAN job") for step in steps)


async def test_a_schedule_is_found_by_its_name(tmp_path: Path) -> None:
    """The fault: it was found by reading all, so a worker that declares 10,000 read 100 million rows at its start."""
    file = tmp_path / "jobs.db"
    async with Headgate(f"sqlite:///{file}").open():
        pass
    assert plans(file)["schedule_named"] == {"SEARCH schedule USING INDEX sqlite_autoindex_schedule_1 (name=?)"}


@pytest.mark.parametrize("analyzed", [False, True])
async def test_the_jobs_of_a_batch_are_found_without_other_jobs_and_batches(tmp_path: Path, analyzed: bool) -> None:
    """The faults: a page read all jobs that came after the page before, of whatever batch, and all batches."""
    file = tmp_path / "jobs.db"
    app = Headgate(f"sqlite:///{file}")

    @app.task
    async def send(number: int) -> None: ...

    async with app.open():
        await send.enqueue_many([(number,) for number in range(500)])
        for _ in range(20):
            first, second = send.call(1), batch([send.call(2)])
            await batch([first, second, send.call(3).after(first, second)]).enqueue()
    if analyzed:
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("ANALYZE")
    found = plans(file)
    jobs = {step for step in found["jobs_of_batch"] if " job " in step}
    for step in found["jobs_of_batch"] | found["pruned_members"]:
        assert not re.match(r"BLOOM|.*AUTOMATIC|SCAN (?!counted|member)", step)
    assert jobs == {
        "SEARCH job USING COVERING INDEX job_batch (batch=? AND rowid>?)",
        "SEARCH job USING INTEGER PRIMARY KEY (rowid=?)",
    }


def plans(file: Path) -> dict[str, set[str]]:
    """The steps of the plan of each statement, as a new connection makes it."""
    found = {}
    connection = sqlite3.connect(file)
    try:
        for name in STATEMENTS:
            sql = STATEMENTS[name].sql
            # The parameter that is a list of columns.
            if name != "add_jobs":
                values = dict.fromkeys(re.findall(r"(?<![:\w]):([a-z_]+)", sql))
                found[name] = {row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)}
    finally:
        connection.close()
    return found


def test_the_parser_of_an_old_sqlite_has_room_for_each_statement() -> None:
    """The fault: with SQLite 3.35 and 3.36, a claim of jobs with limits failed: "parser stack overflow".

    They need one place more on its stack of 100 than 3.40 does; EXPLAIN takes one here.
    """
    with closing(sqlite3.connect(":memory:")) as connection:
        migrate(connection, IN_MEMORY, ManualClock())
        for statement in STATEMENTS.values():
            if not re.search(r"\b(INSERT|UPDATE|DELETE)\b", statement.sql):
                wrapped = f"EXPLAIN SELECT json_group_array(json_array(1)) FROM ({statement.sql})"
                connection.execute(wrapped, defaultdict(lambda: None))
