"""Sets the shop up in this process, with a worker beside the tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import django
import pytest
from django.db import connection

from headgate import Headgate
from tests.until import patient

SETTINGS = "tests.faces.contrib.shop.settings"


@contextmanager
def set_up(folder: Path) -> Iterator[Any]:
    """Django with the shop's settings, on a SQLite file in which the jobs are, too; the module of its tasks.

    A process can be set up once only, so all test modules pass the same folder.
    """
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as environment:
        url = f"sqlite:///{folder / 'shop.db'}"
        environment.setenv("SHOP_DATABASE", url)
        environment.setenv("HEADGATE_URL", url)
        environment.setenv("SHOP_ELSEWHERE", str(folder / "elsewhere.db"))
        environment.setenv("DJANGO_SETTINGS_MODULE", SETTINGS)
        django.setup()
        from tests.faces.contrib.shop import tasks, users  # noqa: F401  # declares a task
        from tests.faces.contrib.shop.jobs import app

        # A file of jobs may hold other tables, too, but has to be made as one.
        asyncio.run(app.migrate())
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS note (name TEXT)")
        yield tasks
        app.sync.close()


@contextmanager
def running(app: Headgate) -> Iterator[None]:
    """A worker of the app in another thread."""
    app.sync.close()
    ready = threading.Event()
    end: list[Any] = []

    async def serve() -> None:
        stop = asyncio.Event()
        end.extend([asyncio.get_running_loop(), stop])
        async with app:
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(patient(10))
    try:
        yield
    finally:
        loop, stop = end
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def ended(result: Any) -> Any:
    """A task result once its job is final."""
    from tests.faces.contrib.shop.jobs import app

    try:
        app.sync.job(result.id).result(timeout=patient(10))
    except Exception as error:  # how it ended is for the test to look at
        assert not isinstance(error, TimeoutError), error  # noqa: PT017
    result.refresh()
    return result
