"""`headgate alerts`: what is wrong by the alerts of an app, and whether their targets work."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from headgate.admin import Admin, AlertStatus
from headgate.cli.locate import ask, locate, takes_app, takes_app_and
from headgate.cli.output import json_option, print_json, print_table
from headgate.clock import SystemClock
from headgate.engine.alert_sender import AlertSender
from headgate.errors import DeclarationError, HeadgateError
from headgate.escaping import printable
from headgate.jobs.alert import message_for_test
from headgate.jobs.identity import IdSource
from headgate.storage.sqlite.threads import CallThread
from headgate.suggestion import did_you_mean


@click.group()
def alerts() -> None:
    """List the alerts that are firing, and send a test message of one."""


@alerts.command(name="list")
@takes_app
@json_option
def list_(target: str, as_json: bool) -> None:
    """List the alerts that are firing, and those that have ended and whose last message is not delivered.

    Workers check the conditions of app.alert every 10 s.
    """
    app = locate(target)

    async def read(admin: Admin) -> tuple[Sequence[AlertStatus], bool]:
        return await admin.alerts(), any(node.state == "alive" for node in await admin.nodes())

    found, is_watched = ask(target, read)
    if as_json:
        print_json(found)
        return
    print_alerts(found)
    if not app._registry.alerts:
        click.echo("this app declares no alert: app.alert(…)", err=True)
    elif not is_watched:
        click.echo("no worker is alive, and only workers check the conditions", err=True)


@alerts.command()
@takes_app_and("ALERT")
@json_option
def test(target: str, alert: str, as_json: bool) -> None:
    """Send a test message of an alert from this process, and say whether its target took it.

    The state of the message is "test". Nothing is stored. Exit code 1 if the message was not delivered.
    """
    app = locate(target)
    app.import_tasks()
    declared = app._registry.alerts
    found = declared.get(alert)
    if found is None:
        known = ", ".join(sorted(declared)) or "none"
        hint = did_you_mean(alert, declared)
        raise DeclarationError(f"this app declares no alert {alert!r}{hint} It declares: {known}")
    clock = SystemClock()
    now, store = clock.now(), app._client.address.shown
    message = message_for_test(alert, found.conditions, id=IdSource().unique(now), now=now, store=store)
    # The interpreter waits for the threads of an event loop, and the function may not return.
    error = asyncio.run(AlertSender(CallThread("headgate-alert"), clock).send(found, message))
    if as_json:
        print_json({"alert": alert, "id": message.id, "is_delivered": error is None, "error": error})
        if error is not None:
            raise SystemExit(1)
        return
    if error is not None:
        raise HeadgateError(f"the message was not delivered: {error}")
    click.echo(printable(f"alert {alert} was delivered"))


def print_alerts(found: Sequence[AlertStatus]) -> None:
    """Print alerts as a table."""
    print_table(
        "Alerts",
        ("alert", "state", "what", "since", "sent", "not delivered"),
        [(each.alert, each.state, each.text, each.started_at, each.sent, each.error) for each in found],
        empty="none is firing",
    )
