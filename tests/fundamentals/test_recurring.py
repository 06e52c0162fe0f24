"""The examples of the page on recurring jobs can be declared unchanged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import headgate
from headgate.schedules.trigger import Trigger

PAGE = Path(__file__).parents[2] / "docs" / "recurring.md"


def test_the_examples_of_the_page_are_declared_as_they_stand_there() -> None:
    names: dict[str, Any] = {}
    for example in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(compile(example.replace("sqlite:///jobs.db", "memory://"), str(PAGE), "exec"), names)
    assert set(names["app"]._registry.schedules) == {"report", "acme", "nightly", "poll_exchange"}


def test_the_triggers_of_its_table_are_triggers() -> None:
    table = PAGE.read_text().partition("| trigger | is due |")[2].partition("\n\n")[0]
    calls = re.findall(r"`((?:Cron|Every|Calendar)\(.*?\))`", table)
    assert len(calls) == 12
    names = {name: getattr(headgate, name) for name in headgate.__all__}
    for call in calls:
        trigger = eval(call.replace(", tz=…", ""), names.copy())
        assert isinstance(trigger, Trigger)
        assert trigger.next_after(0) is not None
