"""Notebooks: a cell that declares a task is run again, and replaces it; in a file the same is a mistake."""

from __future__ import annotations

import asyncio
import builtins
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headgate import Concurrency, DeclarationError, Every, Handler, Headgate, HeadgateError, PayloadError, StrictRate
from headgate.tasks.callbacks import CallbackKind
from headgate.tasks.queue import QueueOptions
from headgate.testing.virtual_time import VirtualClock, run_virtual
from tests.internals import registry_of
from tests.until import patient

CELLS = """
from headgate import Headgate
app = Headgate("memory://")
@app.task
def double(number: int) -> int:
    return number

@app.task
def double(number: int) -> int:
    return 2 * number

with app:
    print("result", double.sync.enqueue(21).result())

"""


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of a session, in which cells are run."""
    session = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", session)
    names = vars(session)
    names |= {
        "app": Headgate("memory://"),
        "StrictRate": StrictRate,
        "Concurrency": Concurrency,
        "Every": Every,
        "Handler": Handler,
        "AsyncIterator": AsyncIterator,
        "dataclass": dataclass,
    }
    return names


def run(cell: str, names: dict[str, Any]) -> None:
    exec(cell, names)


def test_a_cell_that_is_run_again_replaces_its_task_and_what_only_that_limits(notebook: dict[str, Any]) -> None:
    app: Headgate = notebook["app"]
    app.limit("everywhere", StrictRate("100/s"))
    cell = "@app.task(aliases=['old'], limits=[{limits}, 'everywhere'])\ndef work(a: int) -> int: return {result}"
    run(cell.format(limits="StrictRate('1/s')", result="a"), notebook)
    first = notebook["work"]
    run(cell.format(limits="Concurrency(3)", result="2 * a"), notebook)
    assert app.tasks == {"work": notebook["work"]}
    assert notebook["work"] is not first
    assert notebook["work"].function(4) == 8
    assert set(registry_of(app).limits) == {"everywhere", "work:concurrency"}
    assert set(registry_of(app).rules) >= {"everywhere", "work:concurrency"}
    assert "work:rate" not in registry_of(app).rules
    assert registry_of(app).find("old") is notebook["work"]


def test_a_handler_of_a_cell_is_replaced_too(notebook: dict[str, Any]) -> None:
    cell = "@app.handler\nclass Ship(Handler[int]):\n    async def run(self, payload: int) -> int: return {result}"
    for result in ("1", "2"):
        run(cell.format(result=result), notebook)
    assert notebook["app"].tasks["Ship"] is notebook["Ship"].task


def test_a_failing_cell_keeps_the_previous_task(notebook: dict[str, Any]) -> None:
    app: Headgate = notebook["app"]
    run("@app.task\ndef work() -> None: ...\n@app.task(name='other')\ndef other() -> None: ...", notebook)
    first = notebook["work"]
    with pytest.raises(DeclarationError, match="already leads to task 'other'"):
        run("@app.task(name='work', aliases=['other'])\ndef again() -> None: ...", notebook)
    assert app.tasks["work"] is first
    assert registry_of(app).find("work") is first


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("queue='nowhere'", "uses queue 'nowhere'"),
        ("limits=[StrictRate('2/s'), Concurrency(3, name='shared')]", "declares limit 'shared' as 3 at once"),
    ],
    ids=["queue", "limit"],
)
def test_a_cell_that_fails_at_its_queue_or_a_limit_keeps_the_previous_task_with_its_limits(
    notebook: dict[str, Any], options: str, reason: str
) -> None:
    """The fault: the task was gone; and at a limit, the error said that this was declared elsewhere with its own rate.

    That was where the failed cell had declared it.
    """
    app: Headgate = notebook["app"]
    app.limit("shared", Concurrency(5))
    run("@app.task(limits=[StrictRate('1/s')])\ndef work() -> None: ...", notebook)
    first, limits = notebook["work"], dict(registry_of(app).limits)
    with pytest.raises(HeadgateError, match=reason):
        run(f"@app.task({options})\ndef work() -> None: ...", notebook)
    assert app.tasks == {"work": first}
    assert registry_of(app).find("work") is first
    assert registry_of(app).limits == limits
    run("@app.task(limits=[StrictRate('3/s')])\ndef work() -> None: ...", notebook)
    assert registry_of(app).rules["work:rate"] == StrictRate("3/s").rule


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"global_concurrency": 4, "limits": [Concurrency(3, name="shared")]}, "declares limit 'shared' as 3 at once"),
        ({"global_concurrency": 4, "limits": [StrictRate("1/s", key="{nothing}")]}, "names 'nothing'"),
    ],
    ids=["limit", "key"],
)
def test_a_queue_that_cannot_be_declared_anew_stays_as_it_was(options: QueueOptions, reason: str) -> None:
    """The fault: it had some of the limits of the declaration that was refused, and had lost others."""
    app = Headgate("memory://")
    app.limit("shared", Concurrency(5))
    app.queue("mail", global_concurrency=3)

    @app.task(queue="mail")
    def work(tenant: str) -> None: ...

    registry = registry_of(app)
    before = dict(registry.limits), dict(registry.rules), registry.limit_set(work, "mail").names
    with pytest.raises(DeclarationError, match=reason):
        app.queue("mail", **options)
    assert (dict(registry.limits), dict(registry.rules), registry.limit_set(work, "mail").names) == before
    app.queue("mail", global_concurrency=7)
    assert registry.rules["queue:mail"] == Concurrency(7).rule


def test_a_shared_limit_that_is_refused_is_not_declared() -> None:
    """The fault: tasks could use its name, and got the refused one."""
    app = Headgate("memory://")

    @app.task(limits=[Concurrency(5, name="api")])
    def work() -> None: ...

    with pytest.raises(DeclarationError, match="one name is one budget"):
        app.limit("api", Concurrency(3))
    with pytest.raises(DeclarationError, match="is not declared"):
        app.task(name="other", limits=["api"])(lambda: None)


def test_a_schedule_of_a_cell_is_replaced_too(notebook: dict[str, Any]) -> None:
    app: Headgate = notebook["app"]
    cell = "@app.schedule(Every(minutes={minutes}))\ndef work() -> None: ..."
    for minutes in (5, 7):
        run(cell.format(minutes=minutes), notebook)
    assert registry_of(app).schedules["work"].spec.trigger == Every(minutes=7)


def test_a_schedule_of_a_cell_that_is_run_again_is_stored_within_a_minute_while_the_app_runs(
    notebook: dict[str, Any],
) -> None:
    """The fault: after its first minute, a node declared a schedule no more."""

    async def main(clock: VirtualClock) -> None:
        app = notebook["app"] = Headgate("memory://", clock=clock)
        cell = "@app.schedule(Every(minutes={minutes}))\ndef work() -> None: ..."
        run(cell.format(minutes=5), notebook)
        async with app:
            await asyncio.sleep(200)
            assert (await app.admin.schedules.status("work")).trigger == Every(minutes=5).describe()
            run(cell.format(minutes=2), notebook)
            await asyncio.sleep(60)
            assert (await app.admin.schedules.status("work")).trigger == Every(minutes=2).describe()
            # It stays removed, unless the cell is run once more.
            await app.admin.schedules.remove("work")
            await asyncio.sleep(130)
            assert await app.admin.schedules.list() == []
            run(cell.format(minutes=2), notebook)
            await asyncio.sleep(60)
            assert [each.name for each in await app.admin.schedules.list()] == ["work"]

    run_virtual(main)


def test_a_resource_of_a_cell_is_replaced_in_what_needs_it(notebook: dict[str, Any]) -> None:
    """The fault: the cell was refused, because its resource yields what its earlier run yields."""
    run("class Pool: ...\nclass Session: ...", notebook)
    cell = "@app.resource\nasync def pool() -> AsyncIterator[Pool]:\n    yield Pool()"
    run(cell, notebook)
    run("@app.resource\nasync def session(pool: Pool) -> AsyncIterator[Session]:\n    yield Session()", notebook)
    run("@app.task\nasync def write(text: str, pool: Pool, session: Session) -> None: ...", notebook)
    resources = registry_of(notebook["app"]).resources
    first = resources[notebook["Pool"]]
    run(cell, notebook)
    again = resources[notebook["Pool"]]
    assert again is not first
    assert notebook["write"].needs == {"pool": again, "session": resources[notebook["Session"]]}
    assert resources[notebook["Session"]].needs == {"pool": again}
    with pytest.raises(DeclarationError, match="yields Pool, as resource 'pool' does"):
        run("@app.resource\nasync def other() -> AsyncIterator[Pool]:\n    yield Pool()", notebook)


def test_a_resource_of_a_cell_cannot_become_one_that_what_takes_it_cannot_take(notebook: dict[str, Any]) -> None:
    """The faults: each job that needed two which took one another hung, and a node kept what an attempt had opened."""
    run("class Pool: ...\nclass Session: ...", notebook)
    run("@app.resource\nasync def pool() -> AsyncIterator[Pool]:\n    yield Pool()", notebook)
    run("@app.resource\nasync def session(pool: Pool) -> AsyncIterator[Session]:\n    yield Session()", notebook)
    before = registry_of(notebook["app"]).resources.copy()
    with pytest.raises(DeclarationError, match="resource 'pool' takes 'session', which takes it; let one do without"):
        run("@app.resource\nasync def pool(session: Session) -> AsyncIterator[Pool]:\n    yield Pool()", notebook)
    with pytest.raises(DeclarationError, match="resource 'session' is opened once for the node and cannot take 'pool'"):
        run('@app.resource(scope="attempt")\nasync def pool() -> AsyncIterator[Pool]:\n    yield Pool()', notebook)
    assert registry_of(notebook["app"]).resources == before


def test_a_callback_of_a_cell_is_replaced_too(notebook: dict[str, Any]) -> None:
    """The fault: after the second run of its cell it was called twice for each job, with the old function, too."""
    run("@app.task\ndef work() -> None: ...\n@work.on_error\ndef other(job, error): ...", notebook)
    cell = "@work.on_error\ndef note(job, error): return {result}"
    for result in (1, 2):
        run(cell.format(result=result), notebook)
    callbacks = notebook["work"].callbacks.callbacks_for(CallbackKind.ERROR, None)
    assert callbacks == [notebook["other"], notebook["note"]]
    # Nothing tells two lambdas from one that is run again.
    run("work.on_error(lambda job, error: 1)\nwork.on_error(lambda job, error: 2)", notebook)
    assert len(notebook["work"].callbacks.callbacks_for(CallbackKind.ERROR, None)) == 4


def test_a_value_of_a_class_that_a_cell_declared_again_is_refused_with_what_to_do(notebook: dict[str, Any]) -> None:
    """The fault: `Order(number=7)` came back as `Order(number=7)`, and the advice was to annotate its type."""
    cell = "@dataclass\nclass Order:\n    number: int"
    run(cell, notebook)
    run("@app.task\ndef ship(orders: list[Order]) -> Order: return orders[0]", notebook)
    run(cell, notebook)
    payload = notebook["ship"].payload
    advice = r"Order\(number=7\) of another class Order, that of the annotation; if Order was declared again"
    with pytest.raises(PayloadError, match=rf"at orders\[0\]: Order\(number=7\) comes back as {advice}"):
        payload.encode(([notebook["Order"](7)],), {})
    with pytest.raises(PayloadError, match=advice):
        payload.encode_result(notebook["Order"](7))


def test_in_a_file_a_task_that_is_declared_twice_is_an_error(
    notebook: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook["__file__"] = "main.py"
    cell = "@app.task\ndef work() -> None: ..."
    run(cell, notebook)
    with pytest.raises(DeclarationError, match="declared twice"):
        run(cell, notebook)
    # `%run main.py` in IPython, where the file is run again.
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)
    run(cell, notebook)


def test_a_task_of_a_module_is_not_replaced_by_a_cell(notebook: dict[str, Any]) -> None:
    app: Headgate = notebook["app"]

    @app.task
    def work() -> None: ...

    with pytest.raises(DeclarationError, match="declared twice"):
        run("@app.task\ndef work() -> None: ...", notebook)


def test_at_the_prompt_of_python_a_task_is_replaced(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-i", "-q"],
        input=CELLS,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=patient(20),
        check=False,
    )
    assert "result 42" in done.stdout, done.stderr
