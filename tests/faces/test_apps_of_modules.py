"""Apps whose tasks are declared in several modules: which commands import them, and errors about missing imports."""

from __future__ import annotations

import logging
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from headgate import DeclarationError, Headgate
from headgate.cli.locate import AppBroken, AppNotFound, locate
from headgate.jobs.event import TaskUnknown
from headgate.observe.log import log_event
from tests.faces.one_module import answer, call, go_into
from tests.until import patient

APP = """
from headgate import Headgate

app = Headgate("sqlite:///jobs.db", imports=[{imports}])
"""

TASKS = """
from {app} import app


@app.task
async def {task}(tenant: str) -> str:
    return tenant
"""


@pytest.fixture
def suffix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Ends the names of a test's modules, as modules stay imported."""
    go_into(tmp_path, monkeypatch)
    return uuid.uuid4().hex[:8]


def write(folder: Path, **sources: str) -> None:
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)


def test_a_command_imports_the_modules_of_an_app_after_its_own(tmp_path: Path, suffix: str) -> None:
    app, tasks = f"app_{suffix}", f"tasks_{suffix}"
    write(tmp_path, **{app: APP.format(imports=repr(tasks)), tasks: TASKS.format(app=app, task="sync")})
    assert "sync" in call("tasks", f"{app}:app").output


@pytest.mark.slow
def test_a_worker_imports_the_modules_of_an_app_and_those_of_its_options(tmp_path: Path, suffix: str) -> None:
    app, tasks, more = f"app_{suffix}", f"tasks_{suffix}", f"more_{suffix}"
    write(
        tmp_path,
        **{
            app: APP.format(imports=repr(tasks)),
            tasks: TASKS.format(app=app, task="sync"),
            more: TASKS.format(app=app, task="invoice"),
        },
    )
    for task, target in (("sync", tasks), ("invoice", more)):
        enqueueing = f"import {target} as tasks; tasks.{task}.sync.enqueue('acme'); tasks.app.sync.close()"
        subprocess.run([sys.executable, "-c", enqueueing], cwd=tmp_path, check=True, timeout=patient(20))
    worker = [sys.executable, "-m", "headgate", "worker", f"{app}:app", "--import", more, "--drain"]
    done = subprocess.run(worker, cwd=tmp_path, capture_output=True, text=True, timeout=patient(20), check=False)
    assert done.returncode == 0, done.stderr
    assert "no such task" not in done.stderr
    (queue,) = answer("queues", "list", f"{app}:app")
    assert queue["succeeded"] == 2


@pytest.mark.parametrize("name", ["nowhere", "asyncio.nowhere"])
def test_a_module_that_does_not_exist_is_named(name: str) -> None:
    app = Headgate("memory://", imports=[name])
    with pytest.raises(DeclarationError, match=f"'{name}' in imports= of this app: there is no module '{name}'"):
        app.import_tasks()


def test_a_command_shows_what_a_module_of_tasks_raises_from_its_own_line_on(tmp_path: Path, suffix: str) -> None:
    app, tasks = f"app_{suffix}", f"tasks_{suffix}"
    write(tmp_path, **{app: APP.format(imports=repr(tasks)), tasks: "import nowhere_at_all\n"})
    result = call("status", f"{app}:app")
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert f"{tasks}.py" in lines[1]
    assert lines[-1].endswith("its module raised ModuleNotFoundError: No module named 'nowhere_at_all'")


@pytest.mark.parametrize("imports", ["tasks", ["a b"], [1], None, [""], [".tasks"], ["tasks.py"]])
def test_an_invalid_list_of_modules_is_refused(imports: object) -> None:
    with pytest.raises(DeclarationError, match="is not a list of module names"):
        Headgate("memory://", imports=imports)  # type: ignore[arg-type]


async def test_an_app_that_runs_jobs_in_a_program_imports_its_modules(tmp_path: Path, suffix: str) -> None:
    tasks = f"tasks_{suffix}"
    write(tmp_path, **{tasks: f"IMPORTED = {suffix!r}\n"})
    async with Headgate("memory://", imports=[tasks]):
        assert suffix == sys.modules[tasks].IMPORTED


SCRIPT = """
import asyncio

from headgate import Headgate

app = Headgate("memory://"{imports})


async def main() -> None:
    async with app:
        print(await (await app.tasks["sync"].enqueue("acme")).result())
        print(app.tasks["sync"] is __import__("tasks").sync)


if __name__ == "__main__":
    {first}
    asyncio.run(main())
"""


def run_script(folder: Path, *, imports: str = "", first: str = "pass") -> subprocess.CompletedProcess[str]:
    write(folder, main=SCRIPT.format(imports=imports, first=first), tasks=TASKS.format(app="main", task="sync"))
    return subprocess.run(
        [sys.executable, "main.py"], cwd=folder, capture_output=True, text=True, timeout=patient(20), check=False
    )


def test_a_module_that_imports_the_script_gets_the_app_of_the_script(tmp_path: Path) -> None:
    done = run_script(tmp_path, imports=", imports=['tasks']")
    assert done.stdout.split() == ["acme", "True"], done.stderr


def test_an_app_script_that_is_imported_twice_is_reported_with_both_apps(tmp_path: Path) -> None:
    done = run_script(tmp_path, first="import tasks")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("headgate.errors.DeclarationError")]
    assert "has run twice, as the script (__main__) and as module 'main'" in line
    assert "This one is __main__:app, and these tasks are declared on main:app: sync." in line


@pytest.mark.parametrize(
    ("task", "advice"),
    [
        ("invoice", "import the module that declares it by Headgate(imports=['your.module'])"),
        ("shop.mails.send", "import module 'shop.mails' by Headgate(imports=['shop.mails'])"),
    ],
)
def test_a_worker_without_tasks_says_what_to_import(task: str, advice: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "headgate"):
        log_event(TaskUnknown(at=0, task=task, declared=[f"task_{n}" for n in range(22)]))
        log_event(TaskUnknown(at=0, task=task))
    assert f"jobs of task {task} wait, and no such task is declared here: {advice}" in caplog.messages[0]
    assert caplog.messages[0].endswith("task_8, task_9 and 12 more")
    assert caplog.messages[1].endswith("This node declares no tasks")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "corner_shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "app.py").write_text('from headgate import Headgate\n\njobs = Headgate("memory://")\n')
    (package / "factory.py").write_text(
        "from headgate import Headgate\n\n\ndef make_app():\n    return Headgate('memory://')\n\n\n"
        "def fail():\n    raise LookupError('no configuration')\n\n\n"
        "class Web:\n    def __call__(self, scope):\n        return None\n\n\nweb = Web()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "corner_shop"]:
        monkeypatch.delitem(sys.modules, name)
    return package


def test_a_function_that_returns_the_app_names_it(shop: Path) -> None:
    assert isinstance(locate("corner_shop.factory:make_app"), Headgate)
    with pytest.raises(AppBroken, match="its module raised LookupError: no configuration"):
        locate("corner_shop.factory:fail")
    # An ASGI application is called with a request.
    with pytest.raises(AppNotFound, match="is 'Web', not a Headgate app"):
        locate("corner_shop.factory:web")


def test_an_unknown_app_name_is_refused_with_the_existing_apps(shop: Path) -> None:
    with pytest.raises(AppNotFound, match=r"is a package with the modules corner_shop\.app, corner_shop\.factory"):
        locate("corner_shop:app")
    with pytest.raises(AppNotFound, match=r"module 'corner_shop\.app' has no 'app'; write corner_shop\.app:jobs$"):
        locate("corner_shop.app:app")
    # Now the attribute `app` of the package is its module.
    with pytest.raises(AppNotFound, match=r"is 'module', not a Headgate app; write corner_shop\.app:jobs$"):
        locate("corner_shop:app")


@pytest.mark.parametrize("opens", ["asyncio.run(main())", "sync.sync.enqueue('acme')", "with app: pass"])
def test_a_program_that_enqueues_when_it_is_imported_is_refused_with_the_line_to_write(
    tmp_path: Path, suffix: str, opens: str
) -> None:
    """Each command once enqueued again: four jobs became sixteen."""
    name = f"app_{suffix}"
    source = f"""
import asyncio

from headgate import Headgate

app = Headgate("sqlite:///jobs.db")


@app.task
async def sync(tenant: str) -> None: ...


async def main() -> None:
    async with app.open():
        await sync.enqueue("acme")


{opens}
"""
    write(tmp_path, **{name: source})
    told = call("status", f"{name}:app").output
    assert f"{name}.py, line 18, `{opens}`" in told
    assert 'put the code of the main program under `if __name__ == "__main__":`' in told
    (tmp_path / f"{name}.py").unlink()
    guarded = source.replace(opens, f'if __name__ == "__main__":\n    {opens}')
    write(tmp_path, **{f"{name}_guarded": guarded})
    with locate(f"{name}_guarded:app").sync as app:
        assert app.admin.count() == 0
