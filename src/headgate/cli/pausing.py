"""The commands `pause` and `resume` of things that have a name."""

from __future__ import annotations

from collections.abc import Callable

import click

from headgate.admin import Admin, QueuesAdmin
from headgate.admin.schedules import SchedulesAdmin
from headgate.cli.locate import ask, takes_app_and
from headgate.cli.output import json_option, say_change


def add_pausing(
    group: click.Group, noun: str, of: Callable[[Admin], QueuesAdmin | SchedulesAdmin], *, pause: str, resume: str
) -> None:
    """Add the two commands to a group, with these help texts."""

    @takes_app_and(noun.upper())
    @json_option
    def pause_it(target: str, as_json: bool, **named: str) -> None:
        name = named[noun]
        was_running = ask(target, lambda admin: of(admin).pause(name))
        facts = {noun: name, "is_paused": True}
        say_change(was_running, f"{name} is paused", f"{name} was paused already", as_json=as_json, **facts)

    @takes_app_and(noun.upper())
    @json_option
    def resume_it(target: str, as_json: bool, **named: str) -> None:
        name = named[noun]
        was_paused = ask(target, lambda admin: of(admin).resume(name))
        facts = {noun: name, "is_paused": False}
        say_change(was_paused, f"{name} is resumed", f"{name} was not paused", as_json=as_json, **facts)

    group.command(name="pause", help=pause)(pause_it)
    group.command(name="resume", help=resume)(resume_it)
