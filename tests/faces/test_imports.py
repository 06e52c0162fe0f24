"""What programs load: a name of the package brings what it needs, a worker what it runs jobs with, and no more."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import headgate
import headgate.admin

MOST_OF_LIMITER = 60
"""Modules of `from headgate import Limiter`, beside those of asyncio and msgspec, which load 125 themselves."""

MOST_OF_PACKAGE = 40
"""Modules of `import headgate`: those of importlib and typing."""

SNAPSHOT = "; import sys, json; print(json.dumps(sorted(sys.modules)))"

APP = """
import atexit, gc, json, os, sys
from headgate import Headgate, RetryPolicy, StrictRate

app = Headgate("sqlite:///jobs.db")

@app.task(limits=[StrictRate("1000/s", key="{tenant}")])
async def gated(tenant: str) -> str:
    return tenant

@app.task
def plain(number: int) -> int:
    return number

@app.task(retry=RetryPolicy(retries=0))
async def failing() -> None:
    raise ValueError("no")

ready = []
freeze = gc.freeze

def note_ready():
    ready.extend(sys.modules)
    freeze()

def tell():
    with open(os.environ["LOADED"], "w") as file:
        json.dump({"ready": sorted(ready), "late": sorted(set(sys.modules) - set(ready))}, file)

if "LOADED" in os.environ:
    gc.freeze = note_ready
    atexit.register(tell)
"""

ENQUEUE = """
from shop import app, failing, gated, plain
with app.sync:
    gated.sync.enqueue_many([("acme",), ("globex",)])
    plain.sync.enqueue(1)
    failing.sync.enqueue()
"""


def loaded(statement: str) -> set[str]:
    """The modules of a new interpreter that has run one statement."""
    ran = subprocess.run([sys.executable, "-c", statement + SNAPSHOT], capture_output=True, text=True, check=True)
    return set(json.loads(ran.stdout))


def test_importing_the_package_loads_nothing_of_it() -> None:
    modules = loaded("import headgate") - loaded("pass")
    assert {name for name in modules if name.startswith("headgate")} == {"headgate"}
    assert len(modules) <= MOST_OF_PACKAGE, sorted(modules)


def test_a_limiter_loads_no_engine_storage_or_command_line() -> None:
    modules = loaded("from headgate import Limiter") - loaded("import asyncio, msgspec")
    assert len(modules) <= MOST_OF_LIMITER, sorted(modules)
    parts = {name.split(".")[1] for name in modules if name.startswith("headgate.")}
    beside = {"arguments", "clock", "errors", "escaping", "keywords", "plural", "shielding", "urls"}
    assert parts == {"limits", *beside}


def test_a_name_of_another_queue_is_no_attribute_for_tools_that_ask() -> None:
    """An ImportError from `hasattr` stopped tools that look through modules; what `import` says is in test_mistakes."""
    assert not hasattr(headgate, "task")
    assert getattr(headgate, "task", None) is None
    with pytest.raises(AttributeError, match="headgate has no 'task'; write app = Headgate"):
        getattr(headgate, "task")  # noqa: B009  # unknown to the type checker


def test_type_checkers_and_programs_find_each_public_name_in_the_same_module() -> None:
    tree = ast.parse(Path(headgate.__file__).read_text())
    imported = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("headgate.")
        for alias in node.names
    }
    assert imported == headgate._PLACES
    assert set(imported) == set(headgate.__all__) <= set(dir(headgate))
    assert not hasattr(headgate, "Headgates")


@pytest.mark.parametrize("package", [headgate, headgate.admin], ids=lambda package: package.__name__)
def test_no_public_name_is_that_of_a_module(package: ModuleType) -> None:
    """An import of that module would replace it."""
    folder = Path(package.__file__ or "").parent
    assert not {path.stem for path in folder.iterdir()} & set(package.__all__)


def test_a_worker_imports_what_runs_jobs_before_the_first_job(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    subprocess.run([sys.executable, "-c", ENQUEUE], cwd=tmp_path, check=True)
    subprocess.run(
        [sys.executable, "-m", "headgate", "worker", "shop:app", "--drain", "--log-level", "critical"],
        cwd=tmp_path,
        env={**os.environ, "LOADED": str(tmp_path / "loaded.json")},
        check=True,
    )
    found = json.loads((tmp_path / "loaded.json").read_text())
    # What is loaded after gc.freeze is looked through by every later collection, and some job waits for it.
    assert found["late"] == []
    strangers = (
        "csv",
        "email",
        "headgate.admin",
        "headgate.cli.bench",
        "headgate.cli.demonstration",
        "headgate.cli.simulation",
        "headgate.contrib",
        "headgate.http",
        "headgate.testing",
        "http",
        "importlib.metadata",
        "importlib.resources",
        "rich",
        "shutil",
        "starlette",
        "tempfile",
        "zipfile",
    )
    assert not [name for name in found["ready"] if name.startswith(strangers)]


def test_the_command_line_loads_rich_for_tables_only() -> None:
    modules = loaded("import headgate.cli.main; import headgate.cli.jobs, headgate.cli.queues, headgate.cli.status")
    assert "rich" not in modules
    main = loaded("import headgate.cli.main")
    assert not any(name.startswith(("headgate.engine", "headgate.storage")) for name in main)


def test_a_password_is_hashed_where_the_dashboard_is_not_installed() -> None:
    """`headgate init docker` and `headgate password` failed without the web framework."""
    modules = loaded("from headgate.password_hash import PasswordHash; import headgate.cli.init, headgate.cli.password")
    assert "starlette" not in modules
    assert not any(name.startswith("headgate.http") for name in modules)
