"""Tables of the command line, where they have little room and where they are long."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from headgate.admin.columns import Column
from headgate.cli.output import print_list, print_table
from tests.executed_lines import lines_of_call

COLUMNS = ("id", "task", "queue", "state", "attempt", "enqueued", "note")
ID = "019b76da-a800-7003-a62d-94f99a234736"
AT = datetime(2026, 5, 1, 8, 30, tzinfo=UTC)


def rows(count: int) -> list[tuple[object, ...]]:
    return [(ID, "sync_tenant", "default", "waiting (throttled)", 0, AT, None)] * count


def simulate_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the output be that of a terminal of so many columns, which shows text alone."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for name, value in {"TERM": "dumb", "COLUMNS": str(width), "LINES": "50"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_an_instant_and_an_id_are_never_broken(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On 80 columns an instant went over six lines, a few characters each."""
    simulate_terminal(width, monkeypatch)
    print_table("Jobs", COLUMNS, rows(2), empty="none", firm=["id"])
    received = capsys.readouterr().out
    assert received.count("2026-05-01 08:30:00.000Z") == received.count(ID) == 2
    assert max(map(len, received.splitlines())) <= width


@pytest.mark.parametrize("width", [80, 200])
def test_a_long_fact_beside_an_instant_is_printed_whole_with_its_name(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The payload of a job was cut after one line, and the names of all its facts were missing."""
    simulate_terminal(width, monkeypatch)
    facts = [("starts that a limit delayed", 0), ("enqueued", AT), ("payload", "z" * 1000)]
    print_table("Job", ("", ""), facts, empty="")
    received = capsys.readouterr().out
    assert received.count("z") == 1000
    assert all(name in received for name, _ in facts)
    assert "2026-05-01 08:30:00.000Z" in received
    assert max(map(len, received.splitlines())) <= width


def test_a_long_list_is_printed_with_little_work(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten thousand jobs took sixteen seconds to lay out: six thousand executed lines for each."""
    print_table("Jobs", COLUMNS, rows(1), empty="none", firm=["id"])  # loads what it needs
    capsys.readouterr()
    assert lines_of_call(lambda: print_table("Jobs", COLUMNS, rows(600), empty="none", firm=["id"])) < 600 * 500
    assert len(capsys.readouterr().out.splitlines()) == 602


@dataclass
class Machine:
    id: str
    tags: tuple[str, ...]
    beat_age: float | None
    due_at: datetime | None
    note: str = ""


def test_a_record_is_printed_by_the_kinds_of_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    columns = (
        Column("id", "Id", "id"),
        Column("tags", "Tags", "names"),
        Column("beat_age", "Heartbeat", "age"),
        Column("due_at", "Next run", "until"),
        Column("load", "Load"),
        Column("picture", "Picture", only="dashboard"),
    )
    machines = [Machine("a", ("x", "y"), 2.5, AT + timedelta(minutes=5)), Machine("b", (), None, None)]
    print_list("Machines", columns, machines, empty="none", now=AT, load=lambda machine: f"{machine.id} %")
    heading, first, second = _lines(capsys)
    assert heading == ["id", "tags", "heartbeat", "next run", "load"]
    assert first == ["a", "x, y", "2.5 s ago", "in 5 min", "a %"]
    assert second == ["b", "-", "-", "-", "b %"]


@pytest.mark.parametrize(("note", "headings"), [("", ["id"]), ("late", ["id", "note"])])
def test_a_rare_column_is_printed_if_a_record_has_a_value(
    note: str, headings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    columns = (Column("id", "Id", "id"), Column("note", "Note", is_rare=True))
    machines = [Machine("a", (), None, None), Machine("b", (), None, None, note)]
    print_list("Machines", columns, machines, empty="none")
    assert _lines(capsys)[0] == headings


def test_a_list_without_records_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_list("Machines", (Column("id", "Id", "id"),), [], empty="none")
    assert capsys.readouterr().out == "Machines: none\n"


def _lines(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Return the cells of the heading and of each row."""
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    rule = next(number for number, line in enumerate(lines) if set(line) == {"─"})
    return [re.split(r"\s{2,}", line) for line in (lines[rule - 1], *lines[rule + 1 :])]
