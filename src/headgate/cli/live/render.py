"""The rendering of a snapshot, fitted to the terminal. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headgate.admin.nodes import NodeStatus
from headgate.admin.sentence import Tone
from headgate.cli.gauge import budget, spark
from headgate.cli.live.snapshot import LiveSnapshot
from headgate.cli.output import as_text, counted_ago, lasting, until
from headgate.escaping import one_line
from headgate.plural import counted

Order = Literal["name", "waiting", "running", "lag", "failed"]
"""The orders of queues."""

ORDERS: Sequence[Order] = get_args(Order)

TONES: Mapping[Tone, str] = {"bad": "bold red", "warn": "yellow", "info": "", "good": "green"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveView:
    """How a snapshot is shown: at `now` (store time), queues in that order, on `height` lines (None: all).

    `error` is why there is no newer one.
    """

    now: datetime
    order: Order = "name"
    height: int | None = None
    is_paused: bool = False
    error: str | None = None
    has_keys: bool = False


def next_order(order: Order) -> Order:
    """Return the order after this one."""
    return ORDERS[(ORDERS.index(order) + 1) % len(ORDERS)]


def render_snapshot(look: LiveSnapshot | None, view: LiveView) -> RenderableType:
    """Return the whole screen; only the error if there is no snapshot yet."""
    if look is None:
        return Group(Text("headgate top", style="bold"), _trouble(view) or Text("reading the store …", style="dim"))
    rows = _shares(
        view.height,
        [len(look.overview.queues), len(look.overview.throttled), len(look.nodes), 5],
        lines=8 + len(look.overview.verdict),
    )
    parts: list[RenderableType | None] = [
        _head(look, view),
        _trouble(view),
        _verdict(look),
        _totals(look),
        _throughput(look),
        _warnings(look),
        _queues(look, view.order, rows[0]),
        _throttled(look, view.now, rows[1]),
        _nodes(look, rows[2]),
        _failures(look, rows[3]),
        Text("q quits   p pauses   s sorts queues", style="dim") if view.has_keys else None,
    ]
    return Group(*(part for part in parts if part is not None))


def _shares(height: int | None, rows: Sequence[int], *, lines: int) -> list[int]:
    """Return the rows of each table; rows that short tables do not need go to the others. `lines` are around them."""
    if height is None:
        return list(rows)
    # Each table needs three more lines.
    room = max(len(rows), height - lines - 3 * len(rows))
    shares = [0] * len(rows)
    while room > 0 and any(share < want for share, want in zip(shares, rows, strict=True)):
        for place, want in enumerate(rows):
            if shares[place] < want and room > 0:
                shares[place] += 1
                room -= 1
    return shares


def _head(look: LiveSnapshot, view: LiveView) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("headgate top", style="bold")
    text.append(f"  {view.now:%Y-%m-%d %H:%M:%S} UTC", style="dim")
    text.append(*("  PAUSED", "bold yellow") if view.is_paused else ("  live", "dim"))
    return text.append(one_line(f"  {look.overview.store}"))


def _trouble(view: LiveView) -> Text | None:
    return None if view.error is None else Text(one_line(f"the store does not answer: {view.error}"), style="bold red")


def _verdict(look: LiveSnapshot) -> Text | None:
    """Return the one to three sentences that matter most, each on a line."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for sentence in look.overview.verdict:
        text.append(one_line(str(sentence)), style=TONES[sentence.tone]).append("\n")
    text.right_crop()
    return text if look.overview.verdict else None


def _totals(look: LiveSnapshot) -> Text:
    totals = look.overview.totals
    text = Text()
    for name, style in (
        ("running", "green"), ("ready", ""), ("throttled", "yellow"), ("scheduled", ""), ("blocked", ""),
        ("succeeded", "dim"), ("failed", "red" if totals.failed else "dim"), ("cancelled", "dim"),
        # There are none without graphs, and the line is long.
        *((("skipped", "dim"),) if totals.skipped else ()),
    ):  # fmt: skip
        text.append(f"{name} ", style="dim")
        count = getattr(totals, name)
        # Millions are not counted yet.
        text.append("…  " if count is None else f"{count:,}  ", style=style)
    if (old := counted_ago(look.overview.counted_at, look.overview.now)) is not None:
        text.append(old, style="dim")
    return text


def _throughput(look: LiveSnapshot) -> Text:
    through = look.throughput
    if through is None:
        return Text("throughput: unknown yet", style="dim")
    parts = [f"{through.finished:.1f} jobs/s ended", f"{through.failed:.1f}/s failed"]
    if through.enqueued is not None:
        parts.append(f"{through.enqueued:.1f}/s enqueued")
    return Text(f"{', '.join(parts)}   ").append(spark(through.bars), style="cyan")


def _warnings(look: LiveSnapshot) -> Text | None:
    overview = look.overview
    notices = [f"unknown task {each.task!r}: {counted(each.jobs, 'job')} waiting" for each in overview.unknown_tasks]
    notices += [each.text for each in overview.alerts if each.state == "firing"]
    notices += [f"schedule {each.name!r} is overdue" for each in overview.overdue_schedules]
    notices += [f"blocked for {lasting(each.age)}: {each}" for each in overview.blockers]
    return (
        Text(one_line("; ".join(notices[:4])), style="yellow", no_wrap=True, overflow="ellipsis") if notices else None
    )


def _queues(look: LiveSnapshot, order: Order, room: int) -> Table:
    rows = sorted(look.overview.queues, key=lambda queue: queue.queue)
    if order != "name":
        # Failed jobs may not be counted yet.
        rows.sort(key=lambda queue: getattr(queue, order) or 0, reverse=True)
    return _table(
        f"Queues, by {order}",
        ("queue", "running", "ready", "throttled", "scheduled", "blocked", "failed", "oldest", "lag", ""),
        [
            (
                q.queue, q.running, q.ready, q.throttled, q.scheduled, q.blocked, q.failed, lasting(q.oldest),
                lasting(q.lag), "paused" if q.is_paused else "",
            )
            for q in rows
        ],
        room,
    )  # fmt: skip


def _throttled(look: LiveSnapshot, now: datetime, room: int) -> Table | None:
    found = look.overview.throttled
    if not found:
        return None
    return _table(
        "Throttled",
        ("limit", "key", "waiting", "budget", "rule", "next slot"),
        [
            (
                b.limit, b.key, b.waiting, budget(b.used, b.available), b.rule,
                "paused" if b.is_paused else until(b.next_slot_at, now) or "a permit",
            )
            for b in found
        ],
        room,
    )  # fmt: skip


def _nodes(look: LiveSnapshot, room: int) -> Table | Text:
    if not look.nodes:
        return Text("\nno nodes run; start one with `headgate worker`", style="yellow")
    return _table(
        "Nodes" if any(n.lost_at is None for n in look.nodes) else "Nodes: none runs; start one with `headgate worker`",
        ("process", "state", "heartbeat", "running", "slots", "version"),
        [
            (n.name, _node_state(n, look.at), f"{lasting(n.heartbeat_age)} ago", n.running, n.slots, n.version or None)
            for n in look.nodes
        ],
        room,
    )


def _node_state(node: NodeStatus, now: datetime) -> str:
    """Return its state; of a node that was declared dead, also since when, and how many jobs were returned."""
    if node.lost_at is None:
        return node.shown_state
    since = lasting(max(0.0, (now - node.lost_at).total_seconds()))
    return f"gone for {since}, {counted(node.returned or 0, 'job')} returned"


def _failures(look: LiveSnapshot, room: int) -> Table | None:
    if not look.failures:
        return None
    return _table(
        "Last failures",
        ("id", "task", "finished", "error"),
        [
            (
                job.id,
                job.task,
                None if job.finished_at is None else f"{job.finished_at:%H:%M:%S}",
                None if job.error is None else f"{job.error.type}: {job.error.message}".partition("\n")[0],
            )
            for job in look.failures
        ],
        room,
    )


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], room: int) -> Table:
    more = "" if len(rows) <= room else f"   {len(rows) - room} more"
    table = Table(box=None, pad_edge=False, show_edge=False, header_style="dim", title_justify="left")
    table.title = Text(f"\n{title}{more}", style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ellipsis")
    for row in rows[:room]:
        table.add_row(*(as_text(cell) for cell in row))
    return table
