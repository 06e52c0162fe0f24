"""The pictures of the docs are what the rules bucket today."""

from __future__ import annotations

import asyncio
import importlib
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from headgate.cli.demonstration.display import DemoProgress, TenantRow
from headgate.cli.demonstration.jobs_app import DemoLoad
from headgate.cli.demonstration.result import DemoResult, PromiseCheck

# By name: a type checker takes the folder of the same name for it.
drawing: Any = importlib.import_module("docs.pictures")
timeline: Any = importlib.import_module("docs.timeline")
demo: Any = importlib.import_module("docs.demo_picture")

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"
INDEX = Path(__file__).parents[2] / "docs" / "index.md"
CONCEPTS = Path(__file__).parents[2] / "docs" / "concepts.md"


def test_every_picture_in_the_docs_is_drawn_again_as_it_is() -> None:
    committed = {file.name: file.read_text(encoding="utf-8") for file in drawing.FOLDER.iterdir()}
    assert committed == drawing.pictures(), "the rules behave differently now: run `python docs/pictures.py` and look"


def test_every_picture_is_shown_on_the_page_and_nothing_else() -> None:
    shown = re.findall(r"!\[[^\]]+\]\(pictures/([^)]+)\)", PAGE.read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(drawing.pictures())


def test_every_picture_is_well_formed_and_has_a_title_and_a_description() -> None:
    for picture in drawing.pictures().values():
        root = ElementTree.fromstring(picture)
        title, description = (root.findtext(f"{{http://www.w3.org/2000/svg}}{tag}") for tag in ("title", "desc"))
        assert title
        assert description
        assert "prefers-color-scheme: dark" in picture


def test_the_pictures_begin_on_a_full_hour_so_that_windows_lie_where_the_axis_says() -> None:
    assert drawing.NOON % (3600 * 1_000_000) == 0
    assert all(scene.seconds % scene.tick == 0 for scene in drawing.scenes())


def test_the_timeline_in_the_docs_is_what_the_engine_does_today() -> None:
    starts = asyncio.run(timeline.starts())
    assert len(starts) == 22
    assert f"```text\n{timeline.table(starts)}```" in CONCEPTS.read_text(encoding="utf-8")
    assert timeline.picture(starts) == timeline.PICTURE.read_text(encoding="utf-8"), "run `python docs/timeline.py`"


def test_the_moving_picture_shows_what_the_demo_prints_today() -> None:
    svg = "{http://www.w3.org/2000/svg}"
    shown = {"".join(line.itertext()).rstrip() for line in ElementTree.parse(demo.PICTURE).iter(f"{svg}text")}
    screen = demo.Recorder(DemoLoad())
    screen.draw(DemoProgress(0.0, "alive", [TenantRow("quiet-01", 0, 0, 3, None)], 0, 0))
    result = DemoResult(True, [PromiseCheck("jobs lost", True, 0, "0", "measured " * 12)])
    table, title = screen.drawn[0][1], demo.printed_result(result)[0]
    for line in (next(line for line in table if "next slot" in line), title):
        printed = "".join(ElementTree.fromstring(f"<p>{line}</p>").itertext()).rstrip()
        assert printed in shown, "run `python docs/demo_picture.py`"
    assert "All promises kept." in shown
    assert "(demo.svg)" in INDEX.read_text(encoding="utf-8")
