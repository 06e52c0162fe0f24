"""Tables of the command line, where they have little room and where they are long."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from headgate.cli import output
from headgate.cli.output import print_table
from tests.executed_lines import lines_of_call

COLUMNS = ("id", "task", "queue", "state", "attempt", "enqueued", "note")
ID = "019b76da-a800-7003-a62d-94f99a234736"
AT = datetime(2026, 5, 1, 8, 30, tzinfo=UTC)


def rows(count: int) -> list[tuple[object, ...]]:
    return [(ID, "sync_tenant", "default", "waiting (throttled)", 0, AT, None)] * count


@pytest.mark.parametrize("width", [60, 80, 120])
def test_an_instant_and_an_id_are_never_broken(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On 80 columns an instant went over six lines, a few characters each."""
    monkeypatch.setattr(output, "WIDE", width)
    print_table("Jobs", COLUMNS, rows(2), empty="none")
    received = capsys.readouterr().out
    assert received.count("2026-05-01 08:30:00.000Z") == received.count(ID) == 2
    assert max(map(len, received.splitlines())) <= width


def test_a_long_list_is_printed_with_little_work(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten thousand jobs took sixteen seconds to lay out: six thousand executed lines for each."""
    print_table("Jobs", COLUMNS, rows(1), empty="none")  # loads what it needs
    capsys.readouterr()
    assert lines_of_call(lambda: print_table("Jobs", COLUMNS, rows(600), empty="none")) < 600 * 500
    assert len(capsys.readouterr().out.splitlines()) == 602
