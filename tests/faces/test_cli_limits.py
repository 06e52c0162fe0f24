"""`headgate limits show` and the gauges: what a key has used, and how its use went."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import sqlite3
import sys
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headgate.admin.history import LimitHistory, LimitPoint, RateBound
from headgate.cli.limits import use_chart
from headgate.cli.main import main
from headgate.clock import SECOND
from tests.until import result_within

APP = """
from headgate import Headgate, StrictRate

app = Headgate("sqlite:///jobs.db", synchronous="OFF")


@app.task(limits=[StrictRate("4/m", key="{tenant}")])
async def sync(tenant: str) -> None: ...
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    name = f"limited_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(APP)
    app = importlib.import_module(name).app

    async def fill() -> None:
        async with app:
            jobs = await app.tasks["sync"].enqueue_many([("acme",), ("acme",), ("globex",)])
            await asyncio.gather(*(result_within(job, 15) for job in jobs))

    asyncio.run(fill())
    return f"{name}:app"


def call(*words: str) -> Result:
    return CliRunner().invoke(main, ["limits", *words])


def test_one_key_is_shown_with_its_budget_and_its_use(target: str) -> None:
    shown = call("show", target, "sync:rate", "--key", "acme")
    assert shown.exit_code == 0, shown.output
    assert "2/4" in shown.output
    assert "the last 60 min" in shown.output
    assert "4 are allowed in 60.0 s" in shown.output
    found = json.loads(call("show", target, "sync:rate", "--key", "acme", "--json").stdout)
    assert (found["bucket"]["used"], found["bucket"]["available"]) == (2, 2)
    assert sum(point["used"] for point in found["history"]["points"]) == 2


@pytest.mark.parametrize("option", ["--burst", "--slices"])
def test_an_option_of_a_rule_is_at_least_one(target: str, option: str) -> None:
    """The fault: 0 was taken for an option that is not given, and the rule had its default."""
    refused = call("set", target, "sync:rate", "10/m", "--kind", "sliding", option, "0")
    assert refused.exit_code == 2
    assert f"'{option}': 0 is not in the range x>=1" in refused.output
    assert json.loads(call("settings", target, "--json").stdout) == []


def test_use_from_before_the_clock_was_set_back_is_in_no_chart(target: str) -> None:
    """The fault: `headgate limits show` ended with an IndexError."""
    with contextlib.closing(sqlite3.connect("jobs.db")) as connection, connection:
        connection.execute("UPDATE limit_history SET at = at + ?", (7200 * SECOND,))
    shown = call("show", target, "sync:rate", "--key", "acme")
    assert shown.exit_code == 0, shown.output
    assert "no usage in the last 60 min" in shown.output


def test_an_unused_key_is_reported_and_an_unknown_limit_is_refused(target: str) -> None:
    nobody = call("show", target, "sync:rate", "--key", "nobody")
    assert nobody.exit_code == 1
    assert "has used nothing" in nobody.output
    assert "declares no limit 'nothing'" in call("show", target, "nothing").output
    # The fault: it said that key '' had used nothing, which is no key of any job.
    assert "limit 'sync:rate' has a budget for each key" in call("show", target, "sync:rate").output
    assert "declares no limit 'nothing'" in call("remove", target, "nothing", "--yes").output


def test_a_list_has_a_gauge_for_each_key_and_finds_keys_by_how_they_begin(target: str) -> None:
    listed = call("list", target).output
    assert "█████" in listed or "#####" in listed
    assert "\nsync:rate: 2 keys tracked\n" in listed
    assert "mutex:" not in listed
    found = json.loads(call("list", target, "--prefix", "ac", "--json").stdout)
    assert [each["key"] for each in found] == ["acme"]
    assert json.loads(call("list", target, "--key", "ac*", "--json").stdout) == []


def test_a_key_is_a_pattern_only_if_the_request_says_so(target: str) -> None:
    limit = "sync:rate"

    def settings() -> list[tuple[str, str]]:
        return [(each["scope"], each["target"]) for each in json.loads(call("settings", target, "--json").stdout)]

    paused = call("pause", target, limit, "--key", "ac*").output
    assert "paused for key 'ac*' alone (a pattern of keys is named with --pattern)" in paused
    assert settings() == [("key", "ac*")]
    assert "is resumed for key 'ac*'" in call("resume", target, limit, "--key", "ac*").output
    assert "paused for pattern 'ac*'" in call("pause", target, limit, "--pattern", "ac*").output
    assert settings() == [("pattern", "ac*")]
    assert "was not paused for key 'ac*'" in call("resume", target, limit, "--key", "ac*").output
    assert "is resumed for pattern 'ac*'" in call("resume", target, limit, "--pattern", "ac*").output
    assert "now 9/m" in call("set", target, limit, "9/m", "--pattern", "ac*").output
    assert "uses the declared rule for pattern 'ac*'" in call("unset", target, limit, "--pattern", "ac*").output
    both = call("pause", target, limit, "--key", "a", "--pattern", "a*")
    assert both.exit_code != 0
    assert "pass only one of key=, pattern= and tier=" in both.output
    assert "key 'a*' alone" in call("assign", target, limit, "a*", "gold").output
    assert settings() == [("member", "a[*]")]
    assert "pattern 'a*' is in tier gold" in call("assign", target, limit, "a*", "gold", "--pattern").output
    assert settings() == [("member", "a*"), ("member", "a[*]")]
    for more in ([], ["--pattern"]):
        call("assign", target, limit, "a*", "-", *more)
    assert settings() == []


def test_a_chart_of_use_ends_now_and_says_what_is_allowed() -> None:
    now = datetime(2026, 5, 1, 8, tzinfo=UTC)
    points = [LimitPoint(now - timedelta(seconds=55), 4), LimitPoint(now - timedelta(seconds=5), 8)]
    printed = use_chart(LimitHistory("api", "acme", 10, points, RateBound(15, 60.0)), now, 60.0)
    bars, _, words = printed.partition("  the last")
    assert len(bars) == 6
    assert bars[0] != " "
    assert bars[-1] in "█@"
    assert bars[1:-1] == "    "
    assert "at most 8 in 10.0 s; 15 are allowed in 60.0 s" in words
    assert "no usage" in use_chart(LimitHistory("api", None, 10, [], None), now, 3600.0)


# --------------------------------------------------------------------------------------- tasks and schedules


def test_tasks_are_listed_with_their_limits_and_waiting_jobs(target: str) -> None:
    result = CliRunner().invoke(main, ["tasks", target, "--json"])
    waits = [{"limit": "sync:rate", "on_limit": "wait", "max_wait": None, "set_by": "default"}]
    assert json.loads(result.stdout) == [
        {
            "task": "sync",
            "queue": "default",
            "arguments": ["tenant"],
            "required": ["tenant"],
            "limits": ["sync:rate"],
            "requires": [],
            "tags": [],
            "unique_key": None,
            "waiting": 0,
            "waits": waits,
        }
    ]
    assert "sync:rate" in CliRunner().invoke(main, ["tasks", target]).output
