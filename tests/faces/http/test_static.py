"""The files of the dashboard keep what its strict Content-Security-Policy and its sub-path ask of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from headgate import Cron, Headgate, RateLimit
from headgate.http.static_files import STATIC

MODULES = sorted(STATIC.rglob("*.js"))
SHEETS = sorted(STATIC.rglob("*.css"))
SHELL = STATIC / "index.html"


def names(paths: Sequence[Path]) -> list[str]:
    return [path.relative_to(STATIC).as_posix() for path in paths]


def test_the_shell_runs_and_styles_nothing_inline() -> None:
    page = SHELL.read_text()
    assert re.findall(r"<script(?![^>]*\ssrc=)[^>]*>|<style|\sstyle=|\son\w+=", page) == []


def test_the_shell_loads_its_files_from_where_it_is_mounted() -> None:
    page = SHELL.read_text()
    assert page.count('<base href="/">') == 1
    assert page.index("<base") < page.index("<link")
    for file in re.findall(r'(?:src|href)="([^"]+)"', page.replace('<base href="/">', "")):
        assert (STATIC / file.removeprefix("static/")).is_file(), file


def test_the_shell_names_every_module_and_every_sheet() -> None:
    named = re.findall(r'(?:src|href)="static/([^"]+\.(?:js|css))"', SHELL.read_text())
    assert sorted(named) == sorted(names([*MODULES, *SHEETS]))


@pytest.mark.parametrize("module", MODULES, ids=names(MODULES))
def test_a_module_imports_what_is_there_and_by_relative_paths(module: Path) -> None:
    for name in re.findall(r"""(?:from|^import) ["']([^"']+)["']""", module.read_text(), re.MULTILINE):
        assert name.startswith("."), f"{module}: {name}"
        assert (module.parent / name).resolve().is_file(), f"{module}: {name}"


@pytest.mark.parametrize("module", MODULES, ids=names(MODULES))
def test_a_module_never_parses_data_as_markup_and_sends_no_request_elsewhere(module: Path) -> None:
    text = module.read_text()
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text) == []
    assert set(re.findall(r"https?://[^\s\"'`]+", text)) <= {"http://www.w3.org/2000/svg"}


@pytest.mark.parametrize("module", MODULES, ids=names(MODULES))
def test_a_module_says_what_it_is_for(module: Path) -> None:
    assert module.read_text().startswith("/**")


@pytest.mark.parametrize("sheet", SHEETS, ids=names(SHEETS))
def test_a_stylesheet_loads_nothing_from_elsewhere(sheet: Path) -> None:
    for name in re.findall(r"url\(([^)]*)\)", sheet.read_text()):
        assert (sheet.parent / name.strip("\"'")).is_file(), f"{sheet}: {name}"


def test_the_code_that_empty_pages_show_runs() -> None:
    shown = [code for module in MODULES for code in re.findall(r"'(@app\.[^']+)'", module.read_text())]
    assert {re.split(r"\W", code)[2] for code in shown} == {"schedule", "task"}
    for code in shown:
        names = {"app": Headgate("memory://"), "Cron": Cron, "RateLimit": RateLimit}
        exec(f"{code}\nasync def sync(tenant: str = '') -> None: ...", names)
