"""A store with a large backlog, and how PostgreSQL goes about the statements of its verbs."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg

from headgate.clock import SECOND, SystemClock
from headgate.jobs.identity import job_text, lowest_made_at
from headgate.jobs.job import BucketRef
from headgate.storage.postgres.database import SETTINGS
from headgate.storage.postgres.dialect import statements_of
from headgate.storage.statements import as_json
from headgate.storage.stored_rows import bucket_id, lane_id
from tests.internals import shapes_of

HOUR = 3600 * SECOND

PAYLOAD = '{"to":"somebody@example.com","subject":"hello"}'
"""What each job of the backlog is given."""

EXPLAINING = (
    "session_preload_libraries=auto_explain",
    "auto_explain.log_min_duration=0",
    "auto_explain.log_analyze=on",
    "auto_explain.log_buffers=on",
    "auto_explain.log_timing=off",
    "auto_explain.log_format=json",
    "log_line_prefix=",
    "shared_buffers=256MB",
)
"""Options of a server that writes the plan of every statement into its log, as it was run."""


class StatementRun(NamedTuple):
    """One run of a statement.

    Its name, milliseconds, pages that were looked at, tables that were read whole, and rows that were read in vain.
    Rows of the server's own views do not count as read in vain.
    """

    statement: str
    took: float
    pages: int
    scanned: frozenset[str]
    discarded: int
    text: str


class Plans:
    """What the log of a server says about the statements that ran, since it was last asked."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._seen = 0
        self._names = {
            _squeezed(shape.sql): name
            for name, statement in statements_of("headgate").items()
            for shape in shapes_of(statement)
        }

    def read(self) -> list[StatementRun]:
        text = self._log.read_text()[self._seen :]
        self._seen += len(text)
        return [ran for ran in map(self._ran, _explained(text)) if ran is not None]

    def _ran(self, found: tuple[float, Any]) -> StatementRun | None:
        took, explained = found
        name = self._names.get(_squeezed(explained["Query Text"]))
        if name is None:
            return None
        plan = explained["Plan"]
        scanned = {
            node["Relation Name"] for node in _nodes(plan) if node["Node Type"] == "Seq Scan" and node["Actual Loops"]
        }
        pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        discarded = sum(
            node["Actual Loops"] * count
            for node in _nodes(plan)
            for what, count in node.items()
            if what.startswith("Rows Removed by")
        )
        # Sessions and locks of the server are as many as they are, whatever the backlog is.
        is_of_server = all(node.get("Relation Name", "pg_").startswith("pg_") for node in _nodes(plan))
        return StatementRun(
            name, took, pages, frozenset(scanned), 0 if is_of_server else round(discarded), json.dumps(plan, indent=1)
        )


def _explained(text: str) -> Iterator[tuple[float, Any]]:
    decoder = json.JSONDecoder()
    for found in re.finditer(r"duration: ([\d.]+) ms  plan:\s*", text):
        yield float(found[1]), decoder.raw_decode(text, found.end())[0]


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", []):
        yield from _nodes(below)


def _squeezed(sql: str) -> str:
    return " ".join(sql.split())


class AccessPath(NamedTuple):
    """How a plan reads a table: by which index, and which of its conditions the index meets."""

    table: str
    by: str | None
    condition: str


async def access_paths(url: str, names: Collection[str]) -> dict[str, set[AccessPath]]:
    """Return how these statements would read tables, as a session of the store would plan them now."""
    found: dict[str, set[AccessPath]] = {}
    connection = await asyncpg.connect(url, server_settings=SETTINGS)
    try:
        for name, statement in statements_of("headgate").items():
            for shape in shapes_of(statement) if name in names else ():
                await connection.execute(f"PREPARE shape AS {shape.sql}")
                count = await connection.fetchval(
                    "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'shape'"
                )
                values = f"({', '.join(['NULL'] * count)})" if count else ""
                explained = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE shape{values}")
                await connection.execute("DEALLOCATE shape")
                found.setdefault(name, set()).update(
                    AccessPath(node["Relation Name"], node.get("Index Name"), _NUMBERED.sub("", node["Index Cond"]))
                    if "Index Cond" in node
                    else AccessPath(node["Relation Name"], node.get("Index Name"), "")
                    for node in _nodes(json.loads(explained)[0]["Plan"])
                    if "Relation Name" in node
                )
    finally:
        await connection.close()
    return found


_NUMBERED = re.compile(r"_\d+\b|InitPlan \d+|SubPlan \d+")
"""Numbers that differ from plan to plan."""


class Backlog:
    """So many jobs: two of three are final, the others wait.

    The final ones are the older ones, as they would be. Of those that wait, a third has no limit, a third is in one
    lane, and a third in LANES others, whose buckets are closed. Queue and task of the oldest are "rare". Half of
    all have the tag "common", the newest ten also "rare".
    """

    LANES = 2000

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._first = lowest_made_at(SystemClock().now() - HOUR)

    @property
    def newest(self) -> str:
        """The last job of the one lane."""
        return self.id((self._rows - 2) // 3 * 3 + 1)

    def id(self, number: int) -> str:
        """The id of a job, in the order in which they were added."""
        return job_text(self._first + (number << 12))

    async def fill(self, url: str, oldest: int, now: int) -> None:
        """Add them from that instant on, and let the server know what it has; `now` is limit time."""
        buckets = [(BucketRef("api", str(number)),) for number in range(self.LANES)]
        lanes = [lane_id("mail", used, "") for used in buckets]
        connection = await asyncpg.connect(url)
        try:
            await connection.execute("SET synchronous_commit = off")
            await connection.execute(_BUCKETS, [bucket_id(used) for (used,) in buckets], now + HOUR)
            texts = [as_json(used) for used in buckets]
            await connection.execute(
                _JOBS, self._rows, oldest, lane_id("mail", (), ""), lanes, texts, self.LANES, self._first
            )
            await connection.execute(_LANES, now - SECOND)
            await connection.execute(_KNOWN_LANES)
            await connection.execute(_TAGS)
            await connection.execute(_ATTEMPTS)
            await connection.execute("VACUUM ANALYZE")
        finally:
            await connection.close()


_BUCKETS = """
WITH new AS (INSERT INTO headgate.known_bucket SELECT unnest($1::text[]))
INSERT INTO headgate.bucket (id, limit_name, key, idle_at, opens_at)
SELECT id, 'api', (place - 1)::text, $2, $2 FROM unnest($1::text[]) WITH ORDINALITY AS known (id, place)
"""

_JOBS = f"""
INSERT INTO headgate.job (
    id, lane, buckets, waiting, delayed, priority, attempt, run_at, rank, enqueued_at, started_at, finished_at,
    charged_at, state, failed_as, failed_at, task, queue, node, payload, limit_set, options
)
SELECT
    $7::bigint + (n::bigint << 12),
    CASE n % 3 WHEN 0 THEN $3::text WHEN 1 THEN ($4::text[])[1] ELSE ($4::text[])[1 + n % $6] END,
    CASE n % 3 WHEN 0 THEN '[]' WHEN 1 THEN ($5::text[])[1] ELSE ($5::text[])[1 + n % $6] END,
    is_waiting, n % 50 = 7, priority, 0, run_at, run_at - priority * 300000000000000000,
    at, ended_at, ended_at, ended_at,
    CASE WHEN is_waiting THEN 'waiting' WHEN n % 100 = 3 THEN 'failed' ELSE 'succeeded' END,
    CASE WHEN n % 100 = 3 THEN 'failed' END, CASE WHEN n % 100 = 3 THEN ended_at END,
    CASE n WHEN 0 THEN 'rare' ELSE 'send' END, CASE n WHEN 0 THEN 'rare' ELSE 'mail' END, 'gone',
    '{PAYLOAD}', CASE n WHEN 0 THEN 'rare' ELSE 'send' END,
    CASE WHEN n >= $1 - 10 THEN '{{"tags":["common","rare"]}}' WHEN n % 2 = 0 THEN '{{"tags":["common"]}}' END
FROM (
    SELECT
        *, $2::bigint + n AS at, CASE WHEN n % 100 = 0 THEN 5 ELSE 0 END AS priority,
        $2::bigint + n + CASE WHEN n % 100 = 7 THEN 7200000000 ELSE 0 END AS run_at,
        CASE WHEN NOT is_waiting THEN $2::bigint + n END AS ended_at
    FROM (SELECT n, n >= $1 * 2 / 3 AS is_waiting FROM generate_series(0, $1::integer - 1) AS n) AS numbered
) AS made
"""

_LANES = """
INSERT INTO headgate.lane (id, queue, buckets, waiting, since, behind)
SELECT job.lane, 'mail', job.buckets, count(*), CASE WHEN job.buckets <> '[]' THEN $1::bigint END, bucket.id
FROM headgate.job LEFT JOIN headgate.bucket ON job.buckets <> '[]' AND bucket.key = job.buckets::json -> 0 ->> 1
WHERE waiting
GROUP BY job.lane, job.buckets, bucket.id
"""

_TAGS = """
INSERT INTO headgate.job_tag (tag, job)
SELECT tag, id FROM headgate.job CROSS JOIN json_array_elements_text(options::json -> 'tags') AS tag
"""

_KNOWN_LANES = "INSERT INTO headgate.known_lane (id, queue) SELECT id, queue FROM headgate.lane"

_ATTEMPTS = """
INSERT INTO headgate.attempt (job, number, node, started_at, ended_at, outcome, charged_at)
SELECT id, 1, node, started_at, finished_at, 'failed', charged_at FROM headgate.job WHERE state = 'failed'
"""
