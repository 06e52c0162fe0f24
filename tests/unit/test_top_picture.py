"""The screen of `headgate top`: what fits, in which order, and how throughput is shown."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from rich.console import Console

from headgate.admin import BucketStatus, JobTotals, NodeCounts, Overview, QueueOverview
from headgate.admin.history import JobsPoint
from headgate.admin.nodes import lost_status
from headgate.admin.sentence import Sentence
from headgate.admin.verdict import verdict
from headgate.cli.live.render import ORDERS, LiveView, next_order, render_snapshot
from headgate.cli.live.snapshot import BARS, LiveSnapshot, throughput_between, throughput_of
from headgate.clock import SECOND
from headgate.storage.records import LostNode

NOW = datetime(2026, 5, 1, 8, 0, 5, tzinfo=UTC)


def queue(name: str, *, waiting: int = 0, lag: float = 0.0) -> QueueOverview:
    return QueueOverview(name, waiting, waiting, 0, 0, 0, 0, 0, 0, 0, 0, None, lag, None, False)


def overview(*queues: QueueOverview, ended: int = 0, throttled: int = 0) -> Overview:
    buckets = [
        BucketStatus("api", f"key-{place}", "15/m", 15, 0, 9, NOW + timedelta(seconds=30)) for place in range(throttled)
    ]
    return Overview(
        NOW, "jobs.db", JobTotals(succeeded=ended), queues, NodeCounts(), buckets, [], [], [], 0, NOW, NOW, NOW
    )


def look(*queues: QueueOverview, throttled: int = 0) -> LiveSnapshot:
    return LiveSnapshot(NOW, overview(*queues, throttled=throttled), [], None, [])


def shown(look: LiveSnapshot | None, view: LiveView, width: int = 120) -> list[str]:
    console = Console(width=width, record=True, force_terminal=False)
    with console.capture() as captured:
        console.print(render_snapshot(look, view))
    return captured.get().splitlines()


def point(seconds_ago: int, **counts: int) -> JobsPoint:
    at = datetime.fromtimestamp((NOW.timestamp() - seconds_ago) // 10 * 10, UTC)
    nothing = dict.fromkeys(("enqueued", "started", "succeeded", "failed", "cancelled", "skipped", "retried"), 0)
    empty = dict.fromkeys(("wait_p50", "wait_p95", "wait_p99", "wait_max", "run_p50", "run_p95", "run_p99", "run_max"))
    return JobsPoint(at=at, **{**nothing, **counts}, **empty)  # type: ignore[arg-type]


def test_queues_are_sorted_as_asked_and_the_orders_come_round() -> None:
    asked = look(queue("a", waiting=1), queue("b", waiting=9), queue("c", lag=5.0))

    def names(order: str) -> str:
        lines = shown(asked, LiveView(now=NOW, order=order))  # type: ignore[arg-type]
        return "".join(line[0] for line in lines if line[:2] in ("a ", "b ", "c "))

    assert [names("name"), names("waiting"), names("lag")] == ["abc", "bac", "cab"]
    order = ORDERS[0]
    for _ in ORDERS:
        order = next_order(order)
    assert order == ORDERS[0]


def test_what_is_shown_fits_the_height_and_says_how_much_does_not() -> None:
    asked = look(*(queue(f"queue-{number:02}") for number in range(40)), throttled=30)
    lines = shown(asked, LiveView(now=NOW, height=24))
    assert len(lines) <= 24
    assert any("Queues, by name   " in line and " more" in line for line in lines)
    assert len(shown(asked, LiveView(now=NOW))) > 70


def test_what_matters_most_comes_first_and_takes_its_lines_from_the_tables() -> None:
    busy = replace(overview(*(queue(f"queue-{number:02}") for number in range(40))), failed_last_hour=3)
    busy = replace(busy, verdict=[*verdict(busy), Sentence("overdue", "warn", count=2)])
    lines = shown(LiveSnapshot(NOW, busy, [], None, []), LiveView(now=NOW, height=24))
    assert lines[1:3] == ["3 jobs failed in the last hour.", "2 schedules are overdue."]
    assert lines[3].startswith("running ")
    assert len(lines) <= 24


def test_a_key_counts_down_to_its_next_slot_as_time_passes() -> None:
    asked = look(throttled=1)
    assert any("in 30.0 s" in line for line in shown(asked, LiveView(now=NOW)))
    assert any("in 28.5 s" in line for line in shown(asked, LiveView(now=NOW + timedelta(seconds=1.5))))


def test_a_node_that_was_declared_dead_is_no_running_one() -> None:
    at = int((NOW - timedelta(minutes=3)).timestamp()) * SECOND
    lost = LostNode("node-1", "mail-1", 7, 0, 0, "1.0", None, at, 2)
    asked = replace(look(), nodes=[lost_status(lost, NOW)])
    lines = shown(asked, LiveView(now=NOW))
    assert any("none runs; start one with `headgate worker`" in line for line in lines)
    assert any("mail-1" in line and "gone for 3 min, 2 jobs returned" in line for line in lines)


def test_an_error_is_shown_before_the_first_snapshot() -> None:
    assert any("the store does not answer: gone" in line for line in shown(None, LiveView(now=NOW, error="gone")))
    lines = shown(look(queue("a")), LiveView(now=NOW, error="gone", is_paused=True))
    assert any("the store does not answer: gone" in line for line in lines)
    assert any("PAUSED" in line for line in lines)


def test_names_control_neither_the_terminal_nor_the_colours() -> None:
    lines = shown(look(queue("[red]x\x1b[31m")), LiveView(now=NOW))
    assert any("[red]x\\x1b[31m" in line for line in lines)


def test_throughput_is_a_minute_of_the_history_without_the_steps_that_may_be_incomplete() -> None:
    """The fault: the last step but one counted as whole, and had on average 83 % of its jobs."""
    steps = [
        point(0, succeeded=999),
        point(10, succeeded=7),
        point(20, succeeded=50, failed=10, enqueued=6),
        point(590),
    ]
    found = throughput_of(steps, NOW)
    assert (found.finished, found.failed, found.enqueued, found.started) == (1.0, 10 / 60, 0.1, 0.0)
    assert len(found.bars) == BARS
    assert (found.bars[-1], found.bars[-3]) == (999, 60)


def test_without_a_history_throughput_is_the_difference_of_two_snapshots() -> None:
    before = LiveSnapshot(NOW, overview(ended=10), [], None, [])
    after = replace(overview(ended=30), finals_at=NOW + timedelta(seconds=4))
    found = throughput_between(before, after)
    assert found is not None
    assert (found.finished, found.enqueued, found.bars) == (5.0, None, ())
    assert throughput_between(None, after) is None
    # Until there is a new count, the previous one is shown.
    received = replace(before, throughput=found)
    assert throughput_between(received, received.overview) is found
    assert throughput_between(received, replace(after, finals_at=None)) is None


def test_a_count_of_a_while_ago_is_shown_with_its_age() -> None:
    at = NOW - timedelta(seconds=12)
    old = replace(overview(), counted_at=at, totals=JobTotals(waiting=None, ready=None))
    picture = "\n".join(shown(LiveSnapshot(NOW, old, [], None, []), LiveView(now=NOW)))
    assert "ready …" in picture
    assert "counted 12.0 s ago" in picture


def test_running_jobs_of_nodes_and_totals_of_one_answer_agree() -> None:
    """The fault: nodes were read at another instant than the jobs, so one answer had two numbers of running jobs."""
    nodes = NodeCounts(alive=2, gone=1, slots=20, running=7, lost=3)
    assert (nodes.with_running(12).running, nodes.with_running(12).lost) == (9, 3)
    assert (nodes.with_running(2).running, nodes.with_running(2).lost) == (0, 2)
