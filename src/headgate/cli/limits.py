"""`headgate limits`: the budget of each key, and how to steer it while jobs wait for it."""

from __future__ import annotations

from datetime import datetime
from functools import partial

import click
import msgspec

from headgate.admin import Admin, Audited, BucketStatus
from headgate.admin.holders import worded
from headgate.cli.locate import ask, ask_with_time, takes_app, takes_app_and
from headgate.cli.output import json_option, print_json, print_table, say_change, until
from headgate.errors import DeclarationError
from headgate.limits.concurrency import Concurrency, Semaphore
from headgate.limits.dynamic_window import SharedCounter
from headgate.limits.fixed_window import FixedWindow
from headgate.limits.limit import AnyRule, Limit
from headgate.limits.rate_limit import RateLimit
from headgate.limits.sliding_window import SliceCounter, SlidingWindow
from headgate.limits.strict_rate import StrictRate
from headgate.storage.live_rules import LimitSetting


@click.group()
def limits() -> None:
    """Show the budget of each key, and steer it live."""


@limits.command(name="list")
@takes_app
@click.option("--limit", metavar="NAME", help="Only this limit.")
@click.option("--key", help="Only this key.")
@click.option("--count", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@json_option
def list_(target: str, limit: str | None, key: str | None, count: int, as_json: bool) -> None:
    """List limits by key: waiting jobs, starts that count now, starts left, and when the next one may go.

    Those with most waiting jobs come first. `used` and `available` are empty for a limit that the app does not declare.
    """
    found, now = ask_with_time(target, partial(_list, limit=limit, key=key, count=count))
    if as_json:
        print_json(found)
        return
    print_table(
        "Limits",
        ("limit", "key", "rule", "waiting", "used", "available", "next slot", "note"),
        [
            (b.limit, b.key, b.rule, b.waiting, b.used, b.available, until(b.next_slot_at, now), _note(b, now))
            for b in found
        ],
        empty="no key has used any of its budget",
    )


@limits.command(name="set")
@takes_app_and("LIMIT", "RULE")
@click.option("--kind", type=click.Choice(["strict", "rate", "fixed", "sliding"]), help="Another kind of rule.")
@click.option("--burst", type=int, help="Of a rate: how much unused budget a key can save up.")
@click.option("--slices", type=int, help="Of a sliding window: into how many slices it is cut.")
@click.option("--key", metavar="KEY", help="For this key only, or a pattern of keys: 'stripe:*'.")
@click.option("--tier", metavar="NAME", help="For the keys of this tier only.")
def set_(
    target: str,
    words: tuple[str, str],
    kind: str | None,
    burst: int | None,
    slices: int | None,
    key: str | None,
    tier: str | None,
) -> None:
    """Let another RULE hold until `unset`: "100/m", or a number for what runs at once.

    It holds at once, for everything that waits. The most specific setting wins: key, tier, longest pattern, all.
    """
    limit, rule = words
    new = ask(target, partial(_set, limit=limit, rule=rule, kind=kind, burst=burst, slices=slices, key=key, tier=tier))
    click.echo(f"{limit} is now {new} for {_whom(key, tier)}")


@limits.command()
@takes_app_and("LIMIT")
@click.option("--key", metavar="KEY", help="What was set for this key or pattern.")
@click.option("--tier", metavar="NAME", help="What was set for this tier.")
def unset(target: str, words: tuple[str], key: str | None, tier: str | None) -> None:
    """Return to the rule that the code declares."""
    (limit,) = words
    was_set = ask(target, lambda admin: admin.limits.unset(limit, key=key, tier=tier))
    say_change(was_set, f"{limit} is as declared for {_whom(key, tier)}", f"nothing was set for {limit}")


@limits.command()
@takes_app_and("LIMIT")
@click.option("--key", metavar="KEY", help="Only this key, or a pattern of keys.")
@click.option("--tier", metavar="NAME", help="Only the keys of this tier.")
def pause(target: str, words: tuple[str], key: str | None, tier: str | None) -> None:
    """Let nothing start on a limit; what runs goes on, what waits loses nothing."""
    (limit,) = words
    ask(target, lambda admin: admin.limits.pause(limit, key=key, tier=tier))
    click.echo(f"{limit} is paused for {_whom(key, tier)}")


@limits.command()
@takes_app_and("LIMIT")
@click.option("--key", metavar="KEY", help="Only this key, or a pattern of keys.")
@click.option("--tier", metavar="NAME", help="Only the keys of this tier.")
def resume(target: str, words: tuple[str], key: str | None, tier: str | None) -> None:
    """End a pause."""
    (limit,) = words
    was_paused = ask(target, lambda admin: admin.limits.resume(limit, key=key, tier=tier))
    say_change(was_paused, f"{limit} goes on for {_whom(key, tier)}", f"{limit} was not paused")


@limits.command()
@takes_app_and("LIMIT")
@click.option("--key", default="", metavar="KEY", help="Which key (none: a limit without keys).")
def reset(target: str, words: tuple[str], key: str) -> None:
    """Forget what a key has used; permits that running jobs hold stay held."""
    (limit,) = words
    held = ask(target, lambda admin: admin.limits.reset(limit, key))
    click.echo(f"{limit} of key {key!r} is as new" + (f", but {held} permits are held by running jobs" if held else ""))


@limits.command()
@takes_app_and("LIMIT", "SECONDS")
@click.option("--key", default="", metavar="KEY", help="Which key (none: a limit without keys).")
def penalize(target: str, words: tuple[str, str], key: str) -> None:
    """Let nothing start on a key for so many SECONDS."""
    limit, seconds = words
    ask(target, lambda admin: admin.limits.penalize(limit, key, _number(seconds)))
    click.echo(f"{limit} of key {key!r} grants nothing for {seconds} s")


@limits.command()
@takes_app_and("LIMIT", "KEY", "TIER")
def assign(target: str, words: tuple[str, str, str]) -> None:
    """Put a KEY, or a pattern of keys, into a TIER; "-" takes it out."""
    limit, key, tier = words
    ask(target, lambda admin: admin.limits.assign(limit, key, None if tier == "-" else tier))
    click.echo(f"{key!r} is in no tier of {limit}" if tier == "-" else f"{key!r} is in tier {tier} of {limit}")


@limits.command()
@takes_app_and("LIMIT")
def remove(target: str, words: tuple[str]) -> None:
    """Forget a limit: its settings, and what its keys have used. Refused while jobs need it."""
    (limit,) = words
    ask(target, lambda admin: admin.limits.remove(limit))
    click.echo(f"{limit} is forgotten")


@limits.command()
@takes_app
@click.option("--limit", metavar="NAME", help="Only this limit.")
@json_option
def settings(target: str, limit: str | None, as_json: bool) -> None:
    """List what is set at run time."""
    found = ask(target, lambda admin: admin.limits.settings(limit))
    if as_json:
        print_json([_setting_as_data(setting) for setting in found])
        return
    print_table(
        "Settings",
        ("limit", "for", "target", "rule", "paused", "tier"),
        [(s.limit, s.scope, s.target, s.rule, "yes" if s.is_paused else None, s.tier) for s in found],
        empty="all limits are as declared",
    )


@limits.command()
@takes_app_and("LIMIT")
@click.option("--key", metavar="KEY", help="Only this key.")
@json_option
def audit(target: str, words: tuple[str], key: str | None, as_json: bool) -> None:
    """Tell from the recorded starts whether a limit held: the most that started in any window of its length.

    Exit code 1 if it did not.
    """
    (limit,) = words
    found = ask(target, lambda admin: admin.limits.audit(limit, key=key))
    if as_json:
        print_json([{**_as_data(verdict), "held": verdict.held} for verdict in found])
    else:
        print_table(
            f"Audit of {limit}",
            ("key", "starts", "window", "highest", "bound", "verdict"),
            [(v.key, v.starts, f"{v.window:g} s", v.highest, v.bound, "held" if v.held else "EXCEEDED") for v in found],
            empty="no start is recorded",
        )
    if not all(verdict.held for verdict in found):
        raise SystemExit(1)


# ------------------------------------------------------------------------------------------------- asking


async def _list(admin: Admin, *, limit: str | None, key: str | None, count: int) -> list[BucketStatus]:
    return list(await admin.limits.list(limit, key=key, count=count))


async def _set(
    admin: Admin,
    *,
    limit: str,
    rule: str,
    kind: str | None,
    burst: int | None,
    slices: int | None,
    key: str | None,
    tier: str | None,
) -> str:
    new = _limit(admin.limits.declared(limit), rule, kind, burst, slices)
    await admin.limits.set(limit, new, key=key, tier=tier)
    return str(new.rule.describe())


def _limit(declared: AnyRule, rule: str, kind: str | None, burst: int | None, slices: int | None) -> Limit:
    """The limit that the words mean; of the declared kind if they name none."""
    if isinstance(declared, Semaphore):
        return Concurrency(int(_number(rule)))
    if isinstance(declared, SharedCounter):
        raise DeclarationError("a dynamic window is set from code: app.admin.limits.set(name, DynamicWindow(…))")
    match kind or declared.kind:
        case "rate":
            return RateLimit(rule, burst=burst)
        case "strict":
            return StrictRate(rule)
        case "fixed":
            return FixedWindow(rule)
        case "sliding":
            declared_slices = declared.slices if isinstance(declared, SliceCounter) else 60
            return SlidingWindow(rule, slices=slices or declared_slices)
        case other:
            raise DeclarationError(f"rules of kind {other!r} are set from code: app.admin.limits.set(…)")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.UsageError(f"{text!r} is not a number") from None


def _whom(key: str | None, tier: str | None) -> str:
    if tier is not None:
        return f"tier {tier}"
    return "all keys" if key is None else f"key {key!r}"


def _note(bucket: BucketStatus, now: datetime) -> str | None:
    notes = []
    if bucket.is_paused:
        notes.append("paused")
    if bucket.is_set:
        notes.append("overridden")
    if bucket.penalized_until is not None:
        notes.append(f"penalized, {until(bucket.penalized_until, now)}")
    if bucket.holders:
        notes.append(f"held by {worded(bucket.holders)}")
    return ", ".join(notes) or None


def _setting_as_data(setting: LimitSetting) -> dict[str, object]:
    rule = None if setting.rule is None else msgspec.Raw(setting.rule.encode())
    return {**msgspec.structs.asdict(setting), "rule": rule}


def _as_data(verdict: Audited) -> dict[str, object]:
    return {name: getattr(verdict, name) for name in ("limit", "key", "starts", "window", "highest", "bound")}
