"""The size of the source is held: a package that needs more lines raises its budget in the same commit, which says why.

Lines are all lines of the files that people write: Python, SQL, Lua, JavaScript, CSS, HTML. When a package shrinks, its
budget follows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "headgate"
WRITTEN = {".py", ".sql", ".lua", ".js", ".css", ".html"}

BUDGETS = {
    "": 3_140,  # the modules beside the packages
    "admin": 6_500,
    "cli": 8_320,
    "client": 2_950,
    "contrib": 3_230,
    "engine": 10_100,
    "http": 20_530,
    "jobs": 4_320,
    "limits": 9_370,
    "observe": 1_940,
    "schedules": 1_700,
    "storage": 23_610,
    "tasks": 5_200,
    "testing": 1_800,
}

JOB_RECORDS = 25
"""Record types whose name contains Job: each further one says what another has said."""


def lines_in(package: str) -> int:
    paths = (SOURCE / package).rglob("*") if package else SOURCE.glob("*")
    return sum(len(path.read_text().splitlines()) for path in paths if path.suffix in WRITTEN)


def record_types() -> Iterator[str]:
    """The names of structs, dataclasses and other classes that only hold values."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                made_by = [ast.unparse(each) for each in (*node.bases, *node.decorator_list)]
                if any(kind in each for each in made_by for kind in ("Struct", "dataclass", "NamedTuple", "TypedDict")):
                    yield node.name


@pytest.mark.parametrize("package", BUDGETS)
def test_a_package_keeps_to_its_budget_of_lines(package: str) -> None:
    assert BUDGETS[package] - 100 < lines_in(package) <= BUDGETS[package]


def test_each_package_has_a_budget() -> None:
    packages = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert packages == BUDGETS.keys() - {""}


def test_there_are_no_more_records_of_jobs_than_there_were() -> None:
    about_jobs = sorted(name for name in record_types() if "Job" in name)
    assert len(about_jobs) <= JOB_RECORDS, about_jobs
