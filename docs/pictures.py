"""Draw the pictures of `docs/rules.md` from the real rules: `python docs/pictures.py` writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from headgate.clock import SECOND
from headgate.limits.concurrency import NO_PERMITS, Concurrency, Mutex
from headgate.limits.dynamic_window import DynamicWindow
from headgate.limits.fixed_window import FixedWindow
from headgate.limits.rate_limit import RateLimit
from headgate.limits.sliding_window import SlidingWindow
from headgate.limits.strict_rate import StrictRate

FOLDER = Path(__file__).parent / "pictures"

NOON = 1_767_268_800 * SECOND

ARRIVALS = [50] * 6 + [62] * 10
"""When the jobs of the rate pictures come in, in seconds: six late in a minute, ten early in the next."""


@dataclass(frozen=True)
class Band:
    """A stretch of time that counts, shaded; in seconds."""

    begin: float
    end: float
    label: str


@dataclass(frozen=True)
class Dots:
    """A row of dots: one for each job that comes in or starts, stacked where they fall together."""

    label: str
    at: Sequence[float]
    key: int = 0


@dataclass(frozen=True)
class Bars:
    """A row of bars: from when until when each job runs."""

    label: str
    runs: Sequence[tuple[float, float]]
    key: int = 0


@dataclass(frozen=True)
class Curve:
    """What counts at each instant, as steps, and the budget that it may not exceed.

    `parts` are what each of several keys holds together with those before it.
    """

    label: str
    steps: Sequence[tuple[float, int]]
    budget: int
    budget_label: str
    parts: Sequence[Sequence[tuple[float, int]]] = ()


@dataclass(frozen=True)
class Scene:
    """One picture."""

    name: str
    title: str
    note: str
    seconds: int
    rows: Sequence[Dots | Bars | Curve]
    lines: Sequence[float] = ()
    band: Band | None = None
    tick: int = 30


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, picture in pictures().items():
        (FOLDER / name).write_text(picture, encoding="utf-8")


def pictures() -> dict[str, str]:
    """Every picture as SVG, by the name of its file."""
    return {f"{scene.name}.svg": draw(scene) for scene in scenes()}


def scenes() -> Iterable[Scene]:
    minutes = [60 * minute for minute in range(1, 3)]
    yield rate_scene(
        "rate-limit", RateLimit("6/m"), 'RateLimit("6/m")',
        "Six at once after a quiet stretch, then one every ten seconds.",
        counted="owed", budget_label="burst 6",
    )  # fmt: skip
    yield rate_scene(
        "even-spacing", RateLimit("6/m", burst=1), 'RateLimit("6/m", burst=1)',
        "Never two in a row: one every ten seconds.",
        counted="owed", budget_label="burst 1",
    )  # fmt: skip
    yield rate_scene(
        "strict-rate", StrictRate("6/m"), 'StrictRate("6/m")',
        "Any stretch of a minute holds six at most; each start counts for a minute and the margin.",
        band=Band(50, 110.02, "what started at 0:50 counts until 1:50.02"),
    )  # fmt: skip
    yield rate_scene(
        "fixed-window", FixedWindow("6/m"), 'FixedWindow("6/m")',
        "Six in each minute of the clock: twelve within twelve seconds, across its turn.",
        lines=minutes, band=Band(60, 120, "counts for the starts at 1:02"),
    )  # fmt: skip
    yield rate_scene(
        "sliding-window", SlidingWindow("6/m", slices=3), 'SlidingWindow("6/m", slices=3)',
        "The minute moves on by a third: what started at 0:50 leaves with its slice, at 1:40.",
        lines=[20 * slice for slice in range(1, 9)], band=Band(60, 120, "counts for the starts at 1:40"),
    )  # fmt: skip
    yield shared_scene()
    yield concurrency_scene()
    yield mutex_scene()


# ----------------------------------------------------------------------------------------- what the rules make of it


def rate_scene(
    name: str,
    limit: Any,
    title: str,
    note: str,
    *,
    counted: str = "count",
    budget_label: str = "budget 6",
    lines: Sequence[float] = (),
    band: Band | None = None,
) -> Scene:
    rule = limit.rule
    states: list[tuple[int, Any]] = [(NOON, None)]
    now = NOON
    for arrival in ARRIVALS:
        now = max(now, NOON + arrival * SECOND)
        opens_at, state = rule.take(states[-1][1], now)
        if opens_at > now:
            now = opens_at
            _, state = rule.take(states[-1][1], now)
        states.append((now, state))
    starts = [seconds(at) for at, _ in states[1:]]
    budget = rule.snapshot(None, NOON).available

    def used(at: int) -> int:
        latest = next(state for started_at, state in reversed(states) if started_at <= at)
        return int(rule.snapshot(latest, at).used)

    rows = (Dots("come in", ARRIVALS), Dots("start", starts), Curve(counted, steps(used, 180), budget, budget_label))
    return Scene(name, title, note, 180, rows, lines, band)


def shared_scene() -> Scene:
    rule = DynamicWindow(per=60, capacity=12, slices=6).rule
    keys = {"anna": 5, "ben": 25, "carl": 95}
    starts: dict[str, list[float]] = {key: [] for key in keys}
    states: list[tuple[int, Any]] = [(NOON, None)]
    # Every key has more than enough to do from when it comes; a worker looks every half second, and keys take turns.
    for half in range(2 * 240):
        now = NOON + half * SECOND // 2 + 1000
        waiting = [key for key, comes in keys.items() if comes * 2 <= half]
        while waiting:
            for key in list(waiting):
                opens_at, state = rule.for_key(key).take(states[-1][1], now)
                if opens_at > now:
                    waiting.remove(key)
                else:
                    states.append((now, state))
                    starts[key].append(seconds(now))

    def used(first: int) -> Sequence[tuple[float, int]]:
        """What the first so many keys have together."""

        def at_instant(at: int) -> int:
            latest = next(state for started_at, state in reversed(states) if started_at <= at)
            return sum(rule.for_key(key).snapshot(latest, at).used for key in list(keys)[:first])

        return steps(at_instant, 240)

    rows: list[Dots | Bars | Curve] = [
        Dots(f"{key} starts", starts[key], number) for number, key in enumerate(keys, start=1)
    ]
    rows.append(Curve("count", used(3), 12, "capacity 12", [used(1), used(2), used(3)]))
    return Scene(
        "dynamic-window", "DynamicWindow(per=60, capacity=12, slices=6)",
        "Anna is alone and has all twelve; Ben comes at 0:25, Carl at 1:35, and each waits for what is used to leave.",
        240, rows, [10 * slice for slice in range(1, 24)],
    )  # fmt: skip


RUNS = [(2, 22), (4, 12), (6, 26), (8, 14), (10, 30), (12, 8), (40, 12), (44, 10)]
"""When the jobs of the permit pictures come in, and how long each runs, in seconds."""


def held_scene(name: str, limit: Concurrency, title: str, note: str, budget_label: str) -> Scene:
    rule = limit.rule
    state = NO_PERMITS
    running: list[tuple[float, str]] = []
    waiting = [(comes, lasts, str(number)) for number, (comes, lasts) in enumerate(RUNS)]
    runs: list[tuple[float, float]] = []
    held: list[tuple[float, int]] = [(0, 0)]
    for second in range(180):
        for ends, holder in [run for run in running if run[0] <= second]:
            running.remove((ends, holder))
            state = rule.give(state, holder)
        while waiting and waiting[0][0] <= second:
            _, lasts, holder = waiting[0]
            opens_at, after = rule.for_key("", holder=holder).take(state, second)
            if opens_at > second:
                break
            state = after
            waiting.pop(0)
            running.append((second + lasts, holder))
            runs.append((second, second + lasts))
        held.append((second, rule.snapshot(state, second).used))
    last = max(end for _, end in runs)
    rows = (
        Dots("come in", [comes for comes, _ in RUNS]),
        Bars("run", runs),
        Curve("held", changes(held), rule.count, budget_label),
    )
    return Scene(name, title, note, -(-int(last + 5) // 15) * 15, rows, tick=15)


def concurrency_scene() -> Scene:
    return held_scene(
        "concurrency", Concurrency(3), "Concurrency(3)",
        "Three at once, however long they take; who waits starts as soon as one ends.", "count 3",
    )  # fmt: skip


def mutex_scene() -> Scene:
    return held_scene(
        "mutex", Mutex("orders:{order_id}"), 'Mutex("orders:{order_id}")',
        "One at a time for each order, first come, first served.", "one",
    )  # fmt: skip


def seconds(instant: int) -> float:
    return (instant - NOON) / SECOND


def steps(used: Callable[[int], int], span: int) -> list[tuple[float, int]]:
    """What is used, whenever it changes; looked at four times a second."""
    return changes([(quarter / 4, used(NOON + quarter * SECOND // 4)) for quarter in range(4 * span)])


def changes(values: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    kept: list[tuple[float, int]] = []
    for at, value in values:
        if not kept or kept[-1][1] != value:
            kept.append((at, value))
    return kept


# -------------------------------------------------------------------------------------------------------- as SVG


WIDTH, LEFT, RIGHT, TOP = 760, 92, 24, 74
DOT, STACK, BAR = 3, 7, 9
CURVE_HEIGHT = 84
GAP = 22

STYLE = """
  .paper { fill: #ffffff } .ink { fill: #1f2328 } .quiet { fill: #59636e } .axis { stroke: #59636e }
  .line { stroke: #d1d9e0 } .band { fill: #ddf4ff } .bandink { fill: #0969da }
  .budget { stroke: #cf222e } .budgetink { fill: #cf222e }
  .fill0 { fill: #0969da } .fill1 { fill: #0969da } .fill2 { fill: #9a6700 } .fill3 { fill: #1a7f37 }
  .stroke0 { stroke: #0969da } .stroke1 { stroke: #0969da } .stroke2 { stroke: #9a6700 } .stroke3 { stroke: #1a7f37 }
  text { font: 12px -apple-system, "Segoe UI", Helvetica, Arial, sans-serif }
  .title { font: 600 15px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } .ink { fill: #f0f6fc } .quiet { fill: #9198a1 } .axis { stroke: #9198a1 }
    .line { stroke: #30363d } .band { fill: #12304f } .bandink { fill: #79b8ff }
    .budget { stroke: #ff7b72 } .budgetink { fill: #ff7b72 }
    .fill0 { fill: #58a6ff } .fill1 { fill: #58a6ff } .fill2 { fill: #e3b341 } .fill3 { fill: #56d364 }
    .stroke0 { stroke: #58a6ff } .stroke1 { stroke: #58a6ff } .stroke2 { stroke: #e3b341 } .stroke3 { stroke: #56d364 }
  }
""".strip("\n")


def draw(scene: Scene) -> str:
    """The scene as a stand-alone SVG, for light and dark pages."""
    body: list[str] = []
    top = TOP
    for row in scene.rows:
        height = row_height(row)
        body += draw_row(row, scene, top, height)
        top += height + GAP
    bottom = top - GAP
    height = bottom + 52
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        ' role="img" aria-labelledby="title note">',
        f'<title id="title">{escape(scene.title)}</title>',
        f'<desc id="note">{escape(scene.note)}</desc>',
        f"<style>\n{STYLE}\n</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>',
        f'<text class="ink title" x="16" y="28">{escape(scene.title, quote=False)}</text>',
        f'<text class="quiet" x="16" y="48">{escape(scene.note, quote=False)}</text>',
        *draw_time(scene, bottom),
        *body,
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def draw_time(scene: Scene, bottom: int) -> Iterable[str]:
    """The axis, the borders of windows or slices, and the stretch that counts."""
    if scene.band is not None:
        x, width = place(scene.band.begin, scene), place(scene.band.end, scene) - place(scene.band.begin, scene)
        yield f'<rect class="band" x="{x:.1f}" y="{TOP - 8}" width="{width:.1f}" height="{bottom - TOP + 8}"/>'
        yield text("bandink", x + 4, TOP + 4, scene.band.label)
    for at in scene.lines:
        x = place(at, scene)
        yield (f'<line class="line" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{bottom}" stroke-dasharray="3 3"/>')
    yield f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>'
    for at in range(0, scene.seconds + 1, scene.tick):
        x = place(at, scene)
        yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        yield text("quiet", x, bottom + 18, f"{at // 60}:{at % 60:02d}", "middle")
    yield text("quiet", (LEFT + WIDTH - RIGHT) / 2, bottom + 38, "time, in minutes and seconds", "middle")


def row_height(row: Dots | Bars | Curve) -> int:
    match row:
        case Dots():
            return 2 * DOT + STACK * (max((row.at.count(at) for at in row.at), default=1) - 1) + 10
        case Bars():
            return (BAR + 3) * len(row.runs)
        case Curve():
            return CURVE_HEIGHT


def draw_row(row: Dots | Bars | Curve, scene: Scene, top: int, height: int) -> Iterable[str]:
    bottom = top + height
    match row:
        case Dots():
            yield text("ink", LEFT - 10, bottom - 4, row.label, "end")
            yield f'<line class="line" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>'
            for at in sorted(set(row.at)):
                for number in range(row.at.count(at)):
                    y = bottom - 6 - number * STACK
                    yield f'<circle class="fill{row.key}" cx="{place(at, scene):.1f}" cy="{y}" r="{DOT}"/>'
        case Bars():
            yield text("ink", LEFT - 10, top + height / 2 + 4, row.label, "end")
            for number, (begin, end) in enumerate(row.runs):
                x, y = place(begin, scene), top + number * (BAR + 3)
                width = place(end, scene) - x
                yield f'<rect class="fill{row.key}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>'
        case Curve():
            most = max([row.budget, *(value for _, value in row.steps)])
            unit = (height - 10) / most
            for number, steps in reversed(list(enumerate(row.parts, start=1)) or [(0, row.steps)]):
                outline = path(steps, scene, bottom, unit)
                area = f"{outline} V {bottom} H {place(0, scene):.1f} Z"
                if row.parts:
                    # Each part covers those that it is a part of.
                    yield f'<path class="paper" d="{area}"/>'
                yield f'<path class="fill{number}" fill-opacity="0.16" d="{area}"/>'
                yield f'<path class="stroke{number}" d="{outline}" fill="none" stroke-width="1.6"/>'
            y = bottom - row.budget * unit
            yield (
                f'<line class="budget" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" '
                'stroke-width="1.4" stroke-dasharray="6 4"/>'
            )
            yield text("budgetink", WIDTH - RIGHT, y - 5, row.budget_label, "end")
            yield text("ink", LEFT - 10, top + height / 2 + 4, row.label, "end")
            yield text("quiet", LEFT - 10, bottom, "0", "end")
            yield text("quiet", LEFT - 10, y + 4, str(row.budget), "end")


def path(steps: Sequence[tuple[float, int]], scene: Scene, bottom: int, unit: float) -> str:
    """A line that goes up and down in steps."""
    parts = [f"M {place(0, scene):.1f} {bottom - steps[0][1] * unit:.1f}"]
    for at, value in steps[1:]:
        parts.append(f"H {place(min(at, scene.seconds), scene):.1f} V {bottom - value * unit:.1f}")
    return " ".join([*parts, f"H {place(scene.seconds, scene):.1f}"])


def place(at: float, scene: Scene) -> float:
    return LEFT + at / scene.seconds * (WIDTH - LEFT - RIGHT)


def text(kind: str, x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words, quote=False)}</text>'


if __name__ == "__main__":
    main()
