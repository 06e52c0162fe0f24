"""The commands `pause` and `resume` of things that have a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import click

from headgate.admin import Admin, QueuesAdmin
from headgate.admin.schedules import SchedulesAdmin
from headgate.cli.locate import ask, takes_app_and
from headgate.cli.output import json_option, say_change


def add_pausing(
    group: click.Group, noun: str, of: Callable[[Admin], QueuesAdmin | SchedulesAdmin], *, pause: str, resume: str
) -> None:
    """Add the two commands to a group, with these help texts."""

    def add(verb: Literal["pause", "resume"], done: str, not_done: str, help: str) -> None:
        @group.command(name=verb, help=help)
        @takes_app_and(noun.upper())
        @json_option
        def command(target: str, as_json: bool, **named: str) -> None:
            name = named[noun]
            changed = ask(target, lambda admin: getattr(of(admin), verb)(name))
            facts = {noun: name, "is_paused": verb == "pause"}
            say_change(changed, f"{name} {done}", f"{name} {not_done}", as_json=as_json, **facts)

    add("pause", "is paused", "was paused already", pause)
    add("resume", "is resumed", "was not paused", resume)
