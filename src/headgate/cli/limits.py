"""`headgate limits`: the budget of each key, and how to change limits while jobs wait."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from math import ceil
from typing import Any, Literal, NamedTuple, get_args

import click
import msgspec

from headgate.admin import Admin, BucketStatus, LimitSummary
from headgate.admin.history import LimitHistory
from headgate.admin.holders import describe_holders
from headgate.admin.limits import BUCKET_COLUMNS
from headgate.admin.pauses import command_to_end, whose
from headgate.cli.gauge import budget, spark
from headgate.cli.locate import ask, ask_with_time, takes_app, takes_app_and
from headgate.cli.output import json_option, lasting, print_json, print_list, print_table, say_change, say_done, until
from headgate.cli.query import note_unknown
from headgate.cli.question import confirm, require_answer
from headgate.cli.times import seconds as parse_seconds
from headgate.escaping import printable
from headgate.limits.kinds import RateKind
from headgate.plural import counted
from headgate.storage.live_rules import is_pattern

CHART = 60
"""The most bars of the usage chart."""

MOST_LISTED = 5
"""How many other settings are named if there is none to end."""


@click.group()
def limits() -> None:
    """Show the budget of each key, and change limits while jobs wait."""


@limits.command(name="list")
@takes_app
@click.option("--limit", metavar="NAME", help="Only this limit.")
@click.option("--key", metavar="KEY", help="Only this key.")
@click.option("--prefix", metavar="TEXT", help="Only keys with this prefix.")
@click.option("--count", type=click.IntRange(1, 10_000), default=50, show_default=True, help="The most keys to show.")
@json_option
def list_(target: str, limit: str | None, key: str | None, prefix: str | None, count: int, as_json: bool) -> None:
    """List limits by key: waiting jobs, starts that count now, starts left, and when the next one may go.

    Keys with the most waiting jobs come first. `used` and `available` are empty for limits that the app does not
    declare. Below, for each limit: how many keys it tracks, and how many jobs of the last 24 hours started without it
    because its own store was unavailable.
    """
    (found, summary), now = ask_with_time(target, partial(_list, limit=limit, key=key, prefix=prefix, count=count))
    if as_json:
        print_json(found)
        return
    print_list(
        "Limits",
        BUCKET_COLUMNS,
        found,
        empty="no key has used its budget",
        now=now,
        budget=lambda bucket: budget(bucket.used, bucket.available, numbers=False),
        note=lambda bucket: _note(bucket, now),
    )
    for each in summary:
        if not each.keys and not each.unlimited:
            continue
        keys = counted(each.keys, "key") if each.is_exact else f"more than {each.keys:,} keys"
        unlimited = f"; {counted(each.unlimited, 'start')} without it in 24 h, because its store was unavailable"
        click.echo(printable(f"{each.limit}: {keys} tracked{unlimited if each.unlimited else ''}"))


@limits.command()
@takes_app_and("LIMIT")
@click.option("--key", default="", metavar="KEY", help="The key; leave it out if the limit has none.")
@click.option(
    "--span", type=parse_seconds, default="1h", show_default=True, help="The span of the usage chart, up to 1d."
)
@json_option
def show(target: str, limit: str, key: str, span: float, as_json: bool) -> None:
    """Show one key of a limit: its budget, the holders of its permits, and its usage.

    The chart shows charged jobs; those of the last ten seconds may be missing. Exit code 1 if the key has used nothing
    and no job waits for it.
    """
    (found, used, unlimited), now = ask_with_time(target, partial(_show, limit=limit, key=key, span=span))
    if as_json:
        print_json({"bucket": found, "history": used, "unlimited": unlimited})
    elif found is None:
        click.echo(printable(f"key {key!r} of {limit} has used nothing, and no job waits for it"))
    else:
        print_table(
            f"Limit {limit}",
            ("", ""),
            [
                ("key", found.key),
                ("rule", found.rule),
                ("present rate", found.present),
                ("budget", budget(found.used, found.available, 30)),
                ("waiting", found.waiting),
                ("next slot", until(found.next_slot_at, now)),
                ("note", _note(found, now)),
            ],
        )
        click.echo(use_chart(used, now, span))
    if unlimited and not as_json:
        starts = f"{counted(unlimited, 'start')} of all keys went without this limit"
        click.echo(f"{starts} in the last {lasting(span)}: its store was unavailable")
    if found is None:
        raise SystemExit(1)


class _Target(NamedTuple):
    """The keys that a setting is for: one, those that match a pattern, those of a tier, or all."""

    key: str | None
    pattern: str | None
    tier: str | None

    def __str__(self) -> str:
        if self.tier is not None:
            return f"tier {self.tier}"
        if self.pattern is not None:
            return f"pattern {self.pattern!r}"
        if self.key is None:
            return "all keys"
        is_like_a_pattern = is_pattern(self.key)
        return f"key {self.key!r}" + (" alone (a pattern of keys is named with --pattern)" if is_like_a_pattern else "")


def _takes_target(key: str, pattern: str, tier: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add options that name keys, with these help texts, and pass them as `subject`."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @click.option("--key", metavar="KEY", help=key)
        @click.option("--pattern", metavar="PATTERN", help=pattern)
        @click.option("--tier", metavar="NAME", help=tier)
        @functools.wraps(function)
        def command(*, key: str | None, pattern: str | None, tier: str | None, **options: Any) -> None:
            function(subject=_Target(key, pattern, tier), **options)

        return command

    return decorate


@limits.command(name="set")
@takes_app_and("LIMIT", "RULE")
@click.option("--kind", type=click.Choice(get_args(RateKind)), help="Change the kind of rule.")
@click.option("--burst", type=click.IntRange(1), help="For a rate: how much unused budget a key can save.")
@click.option("--slices", type=click.IntRange(1), help="For a sliding window: the number of slices.")
@_takes_target("For this key only.", "For the keys that match: 'stripe:*'.", "For the keys of this tier only.")
@json_option
def set_(target: str, limit: str, rule: str, subject: _Target, as_json: bool, **how: Any) -> None:
    """Replace the rule of a limit until `unset`: "100/m", or a number of jobs that may run at once.

    It applies immediately, also to waiting jobs. The most specific setting wins: key, tier, longest pattern, all.
    """
    new = ask(target, lambda admin: admin.limits.set_rule(limit, rule, **how, **subject._asdict()))
    say_done(f"{limit} is now {new} for {subject}", as_json=as_json, limit=limit, rule=new, **subject._asdict())


@limits.command()
@takes_app_and("LIMIT")
@_takes_target("The setting of this key.", "The setting of this pattern.", "The setting of this tier.")
@json_option
def unset(target: str, limit: str, subject: _Target, as_json: bool) -> None:
    """Return to the rule that the code declares."""
    was_set, there_is = ask(target, partial(_end, limit=limit, subject=subject, verb="unset"))
    done = f"{limit} uses the declared rule for {subject}"
    not_done = f"nothing was set for {limit} and {subject}{there_is}"
    say_change(was_set, done, not_done, as_json=as_json, limit=limit, **subject._asdict())


@limits.command()
@takes_app_and("LIMIT")
@_takes_target("Only this key.", "Only the keys that match: 'stripe:*'.", "Only the keys of this tier.")
@json_option
def pause(target: str, limit: str, subject: _Target, as_json: bool) -> None:
    """Start no jobs under a limit. Running jobs continue, and waiting jobs keep their position."""
    ask(target, lambda admin: admin.limits.pause(limit, **subject._asdict()))
    say_done(f"{limit} is paused for {subject}", as_json=as_json, limit=limit, **subject._asdict())


@limits.command()
@takes_app_and("LIMIT")
@_takes_target("Only this key.", "Only the keys that match: 'stripe:*'.", "Only the keys of this tier.")
@json_option
def resume(target: str, limit: str, subject: _Target, as_json: bool) -> None:
    """End a pause."""
    was_paused, there_is = ask(target, partial(_end, limit=limit, subject=subject, verb="resume"))
    done, not_done = f"{limit} is resumed for {subject}", f"{limit} was not paused for {subject}{there_is}"
    say_change(was_paused, done, not_done, as_json=as_json, limit=limit, **subject._asdict())


@limits.command()
@takes_app_and("LIMIT")
@click.option("--key", default="", metavar="KEY", help="The key; leave it out if the limit has none.")
@json_option
def reset(target: str, limit: str, key: str, as_json: bool) -> None:
    """Give a key its whole budget again. Running jobs keep their permits."""
    held = ask(target, lambda admin: admin.limits.reset(limit, key))
    but = f", but running jobs hold {counted(held, 'permit')}" if held else ""
    say_done(
        f"{limit} of key {key!r} has its whole budget again{but}",
        as_json=as_json,
        limit=limit,
        key=key,
        permits_held=held,
    )


@limits.command()
@takes_app_and("LIMIT", "SECONDS")
@click.option("--key", default="", metavar="KEY", help="The key; leave it out if the limit has none.")
@json_option
def penalize(target: str, limit: str, seconds: str, key: str, as_json: bool) -> None:
    """Start no jobs under a key for SECONDS, also written as 90s, 15m, 2h.

    `headgate limits reset` ends it earlier.
    """
    length = parse_seconds(seconds)
    ask(target, lambda admin: admin.limits.penalize(limit, key, length))
    say_done(
        f"{limit} of key {key!r} is closed for {length:g} s", as_json=as_json, limit=limit, key=key, seconds=length
    )


@limits.command()
@takes_app_and("LIMIT", "KEY", "TIER")
@click.option("--pattern", "is_pattern", is_flag=True, help="KEY is a pattern: all keys that match, as 'stripe:*'.")
@json_option
def assign(target: str, limit: str, key: str, tier: str, is_pattern: bool, as_json: bool) -> None:
    """Assign a KEY, or the keys that match a pattern, to a TIER; "-" removes the assignment."""
    new = None if tier == "-" else tier
    subject = _Target(None, key, None) if is_pattern else _Target(key, None, None)
    ask(target, lambda admin: admin.limits.assign(limit, subject.key, new, pattern=subject.pattern))
    text = f"{subject} is in no tier of {limit}" if new is None else f"{subject} is in tier {new} of {limit}"
    say_done(text, as_json=as_json, limit=limit, **(subject._asdict() | {"tier": new}))


@limits.command()
@takes_app_and("LIMIT")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def remove(target: str, limit: str, yes: bool, as_json: bool) -> None:
    """Remove a limit with its settings and the budget state of its keys. Refused while jobs use it."""
    require_answer(as_json=as_json, yes=yes)
    if not yes:
        confirm(f"Remove limit {limit!r}, its settings and the budget state of its keys?")

    async def forget(admin: Admin) -> bool:
        was_there = await admin.limits.remove(limit)
        if not was_there:
            # A limit that is neither stored nor declared may be a misspelt one.
            admin.limits.declared(limit)
        return was_there

    was_there = ask(target, forget)
    say_change(was_there, f"{limit} is removed", f"there was nothing stored for {limit}", as_json=as_json, limit=limit)


@limits.command()
@takes_app
@click.option("--limit", metavar="NAME", help="Only this limit.")
@json_option
def settings(target: str, limit: str | None, as_json: bool) -> None:
    """List the settings made at run time."""
    found = ask(target, lambda admin: admin.limits.set_rules(limit))
    if as_json:
        rules = [each.rule and msgspec.Raw(each.rule.encode()) for each in found]
        print_json([{**msgspec.structs.asdict(each), "rule": rule} for each, rule in zip(found, rules, strict=True)])
        return
    rows = [
        (s.limit, s.scope, s.target, s.words, s.declared, s.set_by, s.set_at, "yes" if s.is_paused else None, s.tier)
        for s in found
    ]
    columns = ("limit", "for", "target", "rule", "in the code", "set by", "set at", "paused", "tier")
    print_table("Settings", columns, rows, empty="all limits use their declared rules")


@limits.command()
@takes_app_and("LIMIT")
@click.option("--key", metavar="KEY", help="Only this key.")
@json_option
def audit(target: str, limit: str, key: str | None, as_json: bool) -> None:
    """Check a limit against the recorded starts: the most that started in any window of its length.

    Exit code 1 if the limit was exceeded.
    """
    found = ask(target, lambda admin: admin.limits.audit(limit, key=key))
    if as_json:
        print_json(found)
    else:
        print_table(
            f"Audit of {limit}",
            ("key", "starts", "window", "highest", "bound", "verdict"),
            [
                (
                    v.key,
                    v.starts,
                    f"{v.window:g} s",
                    v.highest,
                    v.bound,
                    "within limit" if v.is_within_limit else "EXCEEDED",
                )
                for v in found
            ],
            empty="no start has been recorded",
        )
    if not all(verdict.is_within_limit for verdict in found):
        raise SystemExit(1)


# ------------------------------------------------------------------------------------------------ reading


async def _list(
    admin: Admin, *, limit: str | None, key: str | None, prefix: str | None, count: int
) -> tuple[list[BucketStatus], Sequence[LimitSummary]]:
    found = list(await admin.limits.list(limit, key=key, prefix=prefix, count=count))
    if not found:
        note_unknown(admin, {"limit": limit})
    return found, await admin.limits.summary(*([] if limit is None else [limit]))


async def _show(admin: Admin, *, limit: str, key: str, span: float) -> tuple[BucketStatus | None, LimitHistory, int]:
    admin.limits.declared(limit)
    found = await admin.limits.list(limit, key=key, count=1)
    if not found:
        admin.limits._require_key(limit, key)
    used, of_all = await admin.history.limit(limit, key, span=span), await admin.history.limit(limit, span=span)
    return (found[0] if found else None), used, of_all.unlimited


async def _end(admin: Admin, *, limit: str, subject: _Target, verb: Literal["resume", "unset"]) -> tuple[bool, str]:
    """Resume or unset a limit for its target; if nothing was there, return what is there for other targets."""
    end = admin.limits.resume if verb == "resume" else admin.limits.unset
    if await end(limit, **subject._asdict()):
        return True, ""
    settings = [
        setting
        for setting in await admin.limits.settings(limit)
        if (setting.is_paused if verb == "resume" else setting.rule is not None)
    ]
    if not settings:
        return False, ""
    listed = "; ".join(f"for {whose(each)}: `{command_to_end(each, verb)}`" for each in settings[:MOST_LISTED])
    return False, f". It is {'paused' if verb == 'resume' else 'set'} {listed}{'; …' if settings[MOST_LISTED:] else ''}"


def use_chart(used: LimitHistory, now: datetime, span: float) -> str:
    """Return the usage of a limit as one line of bars; the last one is now."""
    if not used.points:
        return f"no usage in the last {lasting(span)}"
    width = min(CHART, ceil(span / used.step))
    bars = [0] * width
    for point in used.points:
        ago = (now - point.at).total_seconds()
        bars[max(0, width - 1 - int(ago / span * width))] += point.used
    most = f"at most {max(bars)} in {lasting(span / width)}"
    bound = "" if used.bound is None else f"; {used.bound.count} are allowed in {lasting(used.bound.per)}"
    return f"{spark(bars)}  the last {lasting(span)}, {most}{bound}"


def _note(bucket: BucketStatus, now: datetime) -> str | None:
    notes = []
    if bucket.present is not None:
        notes.append(f"now {bucket.present}")
    if bucket.is_paused:
        notes.append("paused")
    if bucket.is_set:
        notes.append(bucket.setting or "overridden")
    if bucket.penalized_until is not None:
        notes.append(f"penalized, ends {until(bucket.penalized_until, now)}")
    if bucket.holders:
        notes.append(f"held by {describe_holders(bucket.holders)}")
    return ", ".join(notes) or None
